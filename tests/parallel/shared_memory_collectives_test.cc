// Ranks as threads over one piece of memory; between processes, mpi_communicator_test runs the same
// checks.
#include "parallel/shared_memory_collectives.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "tests/parallel/collective_checks.h"

namespace lockstep::testing {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, Free>;

Memory ZeroedMemory(int size) {
  const size_t bytes = static_cast<size_t>(SharedMemoryCollectives::BytesNeeded(size));
  Memory memory(std::aligned_alloc(64, bytes));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

// The collectives alone, as the checks want them.
class CollectivesOnly : public Communicator {
 public:
  CollectivesOnly(void* memory, int rank, int size)
      : rank_(rank),
        size_(size),
        shared_(memory, rank, size, /*may_spin=*/rank % 2 == 0, interruption_) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return shared_.AllReduceSum(data, count);
  }
  absl::Status ReduceScatterSum(float* data, int64_t share) override {
    return shared_.ReduceScatterSum(data, share);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    return shared_.AllGather(mine, bytes, all);
  }
  absl::Status Barrier() override { return shared_.Barrier(); }
  absl::Status Send(int, const void*, int64_t) override { return absl::UnimplementedError("Send"); }
  absl::Status Recv(int, void*, int64_t) override { return absl::UnimplementedError("Recv"); }
  bool Probe(int) override { return false; }
  void Abort() override { interruption_.Raise(); }

 private:
  const int rank_;
  const int size_;
  Interruption interruption_;
  SharedMemoryCollectives shared_;
};

absl::Status CheckAll(Communicator& group) {
  for (const int64_t count : kCounts) {
    RETURN_IF_ERROR(CheckAllReduce(group, count));
    RETURN_IF_ERROR(CheckReduceScatter(group, count));
    RETURN_IF_ERROR(CheckAllGather(group, count, /*in_place=*/false));
    RETURN_IF_ERROR(group.Barrier());
    RETURN_IF_ERROR(CheckAllGather(group, count, /*in_place=*/true));
  }
  return absl::OkStatus();
}

class SharedMemoryTest : public ::testing::TestWithParam<int> {};

TEST_P(SharedMemoryTest, CollectivesAreRightToTheBit) {
  const int size = GetParam();
  const Memory memory = ZeroedMemory(size);
  std::vector<absl::Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CollectivesOnly group(memory.get(), rank, size);
      results[static_cast<size_t>(rank)] = CheckAll(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) EXPECT_TRUE(result.ok()) << result;
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemoryTest, ::testing::Range(2, 10));

TEST(SharedMemoryAbortTest, EndsTheWait) {
  const Memory memory = ZeroedMemory(2);
  CollectivesOnly group(memory.get(), 0, 2);
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    group.Abort();
  });
  EXPECT_EQ(group.Barrier().code(), absl::StatusCode::kUnavailable);
  aborter.join();
}

}  // namespace
}  // namespace lockstep::testing
