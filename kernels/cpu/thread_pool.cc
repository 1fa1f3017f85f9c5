#include "kernels/cpu/thread_pool.h"

#include <chrono>

#include "kernels/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::cpu {
namespace {

constexpr uint64_t kCountMask = 0xffffffffu;
// Longer than the gap between two kernels of a step, shorter than anyone would notice.
constexpr auto kSpinTime = std::chrono::microseconds(40);
constexpr int kPausesPerLook = 32;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits a short while for the condition; yields between looks, since threads may outnumber cores.
template <typename Condition>
bool SpinFor(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (condition()) return true;
      Pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  return condition();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  LS_CHECK_GE(num_threads, 1);
  for (int i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i] { WorkerLoop(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t num_tasks, void* object, Call call) {
  if (num_tasks <= 1 || workers_.empty()) {
    for (int64_t task = 0; task < num_tasks; ++task) call(object, task, 0);
    return;
  }
  LS_CHECK_LE(num_tasks, static_cast<int64_t>(kCountMask));
  call_ = call;
  object_ = object;
  num_tasks_ = num_tasks;
  unfinished_.store(num_tasks, std::memory_order_relaxed);
  const uint64_t loop = (unclaimed_.load(std::memory_order_relaxed) & ~kCountMask) + kCountMask + 1;
  unclaimed_.store(loop |
                   static_cast<uint64_t>(num_tasks));  // sequentially consistent with num_sleeping_
  if (num_sleeping_.load() > 0) {
    { const std::lock_guard lock(mutex_); }  // whoever counted itself asleep is in wait() by now
    work_.notify_all();
  }
  Finish(RunTasks(0));
  AwaitFinish();
}

int64_t ThreadPool::RunTasks(int thread) {
  int64_t num_run = 0;
  uint64_t unclaimed = unclaimed_.load(std::memory_order_acquire);
  while ((unclaimed & kCountMask) != 0) {
    if (!unclaimed_.compare_exchange_weak(unclaimed, unclaimed - 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire)) {
      continue;
    }
    // The loop cannot end before this task has, so its description holds still.
    call_(object_, num_tasks_ - static_cast<int64_t>(unclaimed & kCountMask), thread);
    ++num_run;
    unclaimed = unclaimed_.load(std::memory_order_acquire);
  }
  return num_run;
}

void ThreadPool::Finish(int64_t num_tasks) {
  if (num_tasks == 0) return;
  if (unfinished_.fetch_sub(num_tasks) == num_tasks && caller_sleeping_.load()) {
    { const std::lock_guard lock(mutex_); }
    finished_.notify_one();
  }
}

void ThreadPool::AwaitFinish() {
  const auto done = [this] { return unfinished_.load() == 0; };
  if (SpinFor(done)) return;
  std::unique_lock lock(mutex_);
  caller_sleeping_ = true;
  finished_.wait(lock, done);
  caller_sleeping_ = false;
}

bool ThreadPool::AwaitTasks() {
  const auto ready = [this] { return (unclaimed_.load() & kCountMask) != 0 || stopping_.load(); };
  if (!SpinFor(ready)) {
    std::unique_lock lock(mutex_);
    num_sleeping_.fetch_add(1);
    work_.wait(lock, ready);
    num_sleeping_.fetch_sub(1);
  }
  return !stopping_.load();
}

void ThreadPool::WorkerLoop(int thread) {
  while (AwaitTasks()) Finish(RunTasks(thread));
}

}  // namespace lockstep::cpu
