// Latency of an all-reduce between MPI ranks of one host, in both of our ways and by the MPI
// library itself. Run as
//   mpirun --bind-to none --mca btl_vader_single_copy_mechanism none -n 2 mpi_collectives_benchmark
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "parallel/mpi_communicator.h"

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

constexpr int64_t kSizes[] = {4, 1024, 4096, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 4 << 20};

using AllReduce = std::function<bool(float* data, int64_t count)>;

struct Way {
  const char* name;
  Communicator* group;
  AllReduce all_reduce;
};

AllReduce Of(Communicator& group) {
  return [&group](float* data, int64_t count) { return group.AllReduceSum(data, count).ok(); };
}

// The peer: MPI's own, whose order of additions is the library's choice.
bool LibraryAllReduce(float* data, int64_t count) {
  return MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD) == MPI_SUCCESS;
}

// Every rank holds its number plus one; the sum is exact.
bool ReducesCorrectly(const Way& way, int64_t count) {
  const int size = way.group->size();
  std::vector<float> data(static_cast<size_t>(count), static_cast<float>(way.group->rank() + 1));
  if (!way.all_reduce(data.data(), count)) return false;
  const float expected = static_cast<float>(size * (size + 1) / 2);
  return std::all_of(data.begin(), data.end(), [&](float x) { return x == expected; });
}

// Ways take turns, so that what disturbs the machine disturbs all.
int Compare(const std::vector<Way>& ways, bool prints) {
  for (const int64_t bytes : kSizes) {
    const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
    if (prints) std::printf("%8ld bytes:", static_cast<long>(bytes));
    for (const Way& way : ways) {
      if (!ReducesCorrectly(way, count)) return 1;
      std::vector<float> data(static_cast<size_t>(count));
      const Timing timing = Measure(*way.group, [&] {
        if (!way.all_reduce(data.data(), count)) std::abort();
      });
      if (prints) {
        std::printf("  %s %.1f us (p99 %.1f, %.2f GB/s)", way.name, timing.median_us, timing.p99_us,
                    static_cast<double>(bytes) / timing.median_us / 1e3);
      }
    }
    if (prints) std::printf("\n");
  }
  return 0;
}

int Run(const MpiSession& session) {
  const auto grid = ProcessGrid::Create(session.world_size(), 1);
  const auto make = [&](HostCollectives kind) {
    return MakeMpiGroups(session, *grid, {.host_collectives = kind});
  };
  auto shared = make(HostCollectives::kSharedMemory);
  auto messages = make(HostCollectives::kMessages);
  if (!shared.ok() || !messages.ok()) return 1;
  const bool prints = session.rank() == 0;
  if (prints) {
    std::printf("all-reduce of f32, %d ranks on %d cores, a barrier before each\n",
                session.world_size(), session.num_cores_on_node());
  }
  return Compare({{"shared memory", shared->tp.get(), Of(*shared->tp)},
                  {"messages", messages->tp.get(), Of(*messages->tp)},
                  {"the MPI library's", shared->tp.get(), LibraryAllReduce}},
                 prints);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  auto session = lockstep::MpiSession::Start(&argc, &argv);
  if (!session.ok()) return 1;
  const int result = lockstep::Run(*session);
  if (result != 0) lockstep::MpiSession::AbortJob(result);
  return 0;
}
