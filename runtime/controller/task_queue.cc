#include "runtime/controller/task_queue.h"

#include <utility>

namespace lockstep {

void TaskQueue::Push(Task task) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  tasks_.push_back(std::move(task));
  if (tasks_.size() == 1) arrived_.Signal();
}

bool TaskQueue::Take(absl::Time deadline, std::vector<Task>& tasks) {
  absl::MutexLock lock(&mutex_);
  while (tasks_.empty() && !closed_) {
    if (arrived_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  tasks.swap(tasks_);
  return !tasks.empty() || !closed_;
}

void TaskQueue::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  arrived_.Signal();
}

TaskThread::TaskThread() {
  thread_ = std::thread([this] {
    std::vector<Task> tasks;
    while (queue_.Take(absl::InfiniteFuture(), tasks)) {
      for (Task& task : tasks) task();
      tasks.clear();
    }
  });
}

TaskThread::~TaskThread() { Stop(); }

void TaskThread::Stop() {
  queue_.Close();
  if (thread_.joinable()) thread_.join();
}

}  // namespace lockstep
