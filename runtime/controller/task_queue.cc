#include "runtime/controller/task_queue.h"

#include <algorithm>
#include <utility>

#include "kernels/base/steady_clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kLongestWait = absl::Hours(1);  // the clock's own times have an end

}  // namespace

void TaskQueue::Push(Task task) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  tasks_.push_back(std::move(task));
  if (tasks_.size() == 1) arrived_.notify_one();
}

bool TaskQueue::Take(absl::Time deadline, std::vector<Task>& tasks) {
  std::unique_lock lock(mutex_);
  while (tasks_.empty() && !closed_) {
    const absl::Duration left = deadline - SteadyNow();
    if (left <= absl::ZeroDuration()) break;
    arrived_.wait_for(lock, absl::ToChronoNanoseconds(std::min(left, kLongestWait)));
  }
  tasks.swap(tasks_);
  return !tasks.empty() || !closed_;
}

void TaskQueue::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  arrived_.notify_one();
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
