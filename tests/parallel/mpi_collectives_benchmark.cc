// All-reduce and message latency between MPI ranks. Run as
//   mpirun --bind-to none --mca btl_vader_single_copy_mechanism none -n 2 mpi_collectives_benchmark
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "parallel/mpi_communicator.h"
#include "parallel/polite_wait.h"

namespace lockstep {
namespace {

constexpr int kWarmUp = 200;
constexpr int kRounds = 1000;

struct Timing {
  double median_us = 0;
  double p99_us = 0;
};

template <typename Operation>
Timing Measure(Communicator& group, const Operation& operation) {
  std::vector<double> times;
  for (int round = 0; round < kWarmUp + kRounds; ++round) {
    if (!group.Barrier().ok()) std::abort();
    const auto start = std::chrono::steady_clock::now();
    operation();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (round >= kWarmUp) times.push_back(time.count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

// Every rank holds its number plus one; the sum is exact.
bool ReducesCorrectly(Communicator& group, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), static_cast<float>(group.rank() + 1));
  if (!group.AllReduceSum(data.data(), count).ok()) return false;
  const float expected = static_cast<float>(group.size() * (group.size() + 1) / 2);
  return std::all_of(data.begin(), data.end(), [&](float x) { return x == expected; });
}

int Run(const MpiSession& session, bool use_shared_memory) {
  const auto grid = ProcessGrid::Create(session.world_size(), 1);
  auto groups = MakeMpiGroups(session, *grid, {.use_shared_memory = use_shared_memory});
  if (!groups.ok()) return 1;
  Communicator& group = *groups->tp;
  const bool prints = group.rank() == 0;
  if (prints)
    std::printf("%d ranks on %d cores, f32, barrier before each, %s\n", group.size(),
                NumUsableCores(), use_shared_memory ? "shared memory" : "MPI messages");
  for (const int64_t bytes : {4, 1024, 4096, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 4 << 20}) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    if (!ReducesCorrectly(group, count)) return 1;
    std::vector<float> data(static_cast<size_t>(count));
    const Timing timing = Measure(group, [&] {
      if (!group.AllReduceSum(data.data(), count).ok()) std::abort();
    });
    if (prints) {
      std::printf("all-reduce %8ld bytes: median %8.1f us, p99 %8.1f us, %6.2f GB/s\n",
                  static_cast<long>(bytes), timing.median_us, timing.p99_us,
                  static_cast<double>(bytes) / timing.median_us / 1e3);
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  auto session = lockstep::MpiSession::Start(&argc, &argv);
  if (!session.ok()) return 1;
  int result = 0;
  for (const bool use_shared_memory : {true, false}) {
    result = std::max(result, lockstep::Run(*session, use_shared_memory));
  }
  if (result != 0) lockstep::MpiSession::AbortJob(result);
  return 0;
}
