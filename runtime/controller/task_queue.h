// Work handed to one thread: a queue that many threads push to and one thread takes from in
// batches, and a thread that runs it. The taker sleeps when there is nothing to do; it never polls.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace lockstep {

using Task = absl::AnyInvocable<void()>;

// Any thread pushes, one thread takes. Order is kept.
class TaskQueue {
 public:
  // Dropped after Close (its destructor runs here, on the caller's thread).
  void Push(Task task);
  // Waits until there is a task, the queue is closed or the deadline (of SteadyNow) passed, then
  // moves all tasks into `tasks` (which must be empty). False when the queue is closed and nothing
  // is left.
  bool Take(absl::Time deadline, std::vector<Task>& tasks);
  void Close();

 private:
  std::mutex mutex_;  // absl's waits follow the wall clock
  std::condition_variable arrived_;
  std::vector<Task> tasks_;
  bool closed_ = false;
};

// Runs pushed tasks in order on its own thread.
class TaskThread {
 public:
  TaskThread();
  ~TaskThread();  // Stop
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  void Push(Task task) { queue_.Push(std::move(task)); }
  // Runs what is queued, then ends the thread. Idempotent; not from a task.
  void Stop();

 private:
  TaskQueue queue_;
  std::thread thread_;
};

}  // namespace lockstep
