// The threads of one CPU backend: a loop over tasks, shared between the caller and its workers.
//
// One caller at a time (the step loop). Workers look for work for some tens of microseconds after
// the last, then sleep: an idle pool costs nothing. A task is claimed by whoever is awake, so a
// worker that the system does not schedule delays nobody, and a loop is complete as soon as its
// tasks are. Nothing is allocated per loop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lockstep::cpu {

class ThreadPool {
 public:
  // The caller counts as one of num_threads >= 1.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, num_tasks), in about ascending order; thread in
  // [0, num_threads) names the thread that runs it (0 = the caller). Returns when all are done. Not
  // to be called from a body.
  template <typename Body>
  void ParallelFor(int64_t num_tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    Run(num_tasks, &body, [](void* object, int64_t task, int thread) {
      (*static_cast<Plain*>(object))(task, thread);
    });
  }

 private:
  using Call = void (*)(void* object, int64_t task, int thread);

  void Run(int64_t num_tasks, void* object, Call call);
  void WorkerLoop(int thread);
  bool AwaitTasks();               // false when the pool is being destroyed
  int64_t RunTasks(int thread);    // until none is left to claim; how many were run
  void Finish(int64_t num_tasks);  // reports tasks as done
  void AwaitFinish();

  // The loop at hand; written by the caller while no task is claimable or running, read by those
  // who claimed a task.
  Call call_ = nullptr;
  void* object_ = nullptr;
  int64_t num_tasks_ = 0;

  // Upper half: number of the loop; lower half: tasks not yet claimed. The number keeps a late
  // worker from claiming, by a value it read before, a task of another loop.
  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_;
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> caller_sleeping_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace lockstep::cpu
