#include "kernels/cpu/thread_pool.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::cpu {
namespace {

TEST(ThreadPoolTest, EveryTaskRunsOnceByAKnownThread) {
  for (const int num_threads : {1, 2, 3, 16}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.num_threads(), num_threads);
    for (const int64_t num_tasks : {0, 1, 2, 3, 100, 1000}) {
      std::vector<std::atomic<int>> runs(num_tasks);
      std::atomic<bool> known = true;
      pool.ParallelFor(num_tasks, [&](int64_t task, int thread) {
        ++runs[task];
        if (thread < 0 || thread >= num_threads) known = false;
      });
      EXPECT_TRUE(known);
      for (const auto& count : runs) ASSERT_EQ(count, 1);
    }
  }
}

// Many short loops, each seeing what the one before wrote without atomics: what a lost wake-up or a
// task claimed from an old loop breaks.
TEST(ThreadPoolTest, LoopsFollowEachOther) {
  ThreadPool pool(8);
  std::vector<int64_t> values(37, 0);
  for (int64_t loop = 0; loop < 3000; ++loop) {
    pool.ParallelFor(1 + loop % 37, [&](int64_t task, int) { values[task] += task + 1; });
  }
  for (int64_t task = 0; task < 37; ++task) {
    const int64_t loops = 3000 / 37 * (37 - task) + std::max<int64_t>(0, 3000 % 37 - task);
    EXPECT_EQ(values[task], loops * (task + 1)) << task;
  }
}

TEST(ThreadPoolTest, SleepingWorkersWakeUp) {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // past the spinning
    std::atomic<int> runs = 0;
    pool.ParallelFor(64, [&](int64_t, int) { ++runs; });
    ASSERT_EQ(runs, 64);
  }
}

// Each task waits for the other: only two threads at once can end this.
TEST(ThreadPoolTest, TasksRunAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> arrived = 0;
  pool.ParallelFor(2, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

// The caller has nothing left to do and must wait for a long task of another.
TEST(ThreadPoolTest, CallerSleepsUntilTheLastTaskIsDone) {
  ThreadPool pool(3);
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> done = 0;
    pool.ParallelFor(3, [&](int64_t, int thread) {
      if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++done;
    });
    ASSERT_EQ(done, 3);
  }
}

TEST(ThreadPoolTest, IdlePoolUsesNoProcessorTime) {
  ThreadPool pool(8);
  pool.ParallelFor(100, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto used_ms = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
  };
  const long before = used_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(used_ms() - before, 20);  // seven workers that poll would use hundreds
}

TEST(ThreadPoolTest, PoolsStartAndStopInAnyState) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(1 + round % 5);
    if (round % 2 == 0) pool.ParallelFor(round, [](int64_t, int) {});
  }
}

TEST(ThreadPoolTest, SeveralPoolsShareTheProcessor) {
  std::vector<std::thread> ranks;
  std::atomic<int64_t> total = 0;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&] {
      ThreadPool pool(4);
      for (int loop = 0; loop < 200; ++loop) pool.ParallelFor(10, [&](int64_t, int) { ++total; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(total, 4 * 200 * 10);
}

}  // namespace
}  // namespace lockstep::cpu
