#include "runtime/worker/preflight.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "parallel/placement.h"

namespace lockstep {
namespace {

constexpr int kWarmUps = 2;
constexpr int kBatches = 3;
constexpr int kSmallRounds = 10;  // of a batch
constexpr int kLargeRounds = 1;
constexpr int64_t kSmallFloats = 16;
constexpr int64_t kLargeFloats = int64_t{1} << 18;  // 1 MiB, some hundred tokens' activations

// As it travels between ranks of one program, which are built alike.
struct FactsRecord {
  std::array<char, 256> host = {};
  int64_t node = 0;
  int64_t needed_bytes = 0;
  int64_t available_bytes = 0;
  int64_t gpu = kNoGpu;
  int64_t foreign_bytes = 0;
  int64_t offload_bytes = 0;
  int64_t host_available_bytes = 0;
};

std::string GiB(int64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / 0x1p30);
}

// Ranks take about equal parts of weights and KV cache.
std::string MoreOf(int64_t needed, int64_t available, bool on_gpu) {
  const char* what = on_gpu ? "GPUs" : "hosts";
  if (available <= 0) return absl::StrCat("use more ", what);
  return absl::StrCat("use ", (needed - 1) / available + 1, " times as many ", what);
}

// What others hold a larger part of the GPU would not give.
std::string WaysOut(const RankFacts& fact) {
  if (fact.gpu == kNoGpu) return ": ";
  if (fact.foreign_bytes == 0) return ": raise --gpu-memory-utilization, ";
  return absl::StrCat("; other programs and the driver hold ", GiB(fact.foreign_bytes),
                      " of it (see nvidia-smi): end programs that need not be there, ");
}

absl::Status CheckMemory(std::span<const RankFacts> facts) {
  // Of a host, or of one rank: its share of a GPU.
  std::map<std::pair<int, int>, std::vector<int>> ranks_of_memory;
  for (int rank = 0; rank < std::ssize(facts); ++rank) {
    const RankFacts& fact = facts[static_cast<size_t>(rank)];
    ranks_of_memory[{fact.node, fact.gpu == kNoGpu ? kNoGpu : rank}].push_back(rank);
  }
  for (const auto& [memory, ranks] : ranks_of_memory) {
    int64_t needed = 0;
    bool with_copies = false;
    int64_t available = facts[static_cast<size_t>(ranks.front())].available_bytes;
    for (const int rank : ranks) {
      needed += facts[static_cast<size_t>(rank)].needed_bytes;
      with_copies |= facts[static_cast<size_t>(rank)].offload_bytes > 0;
      available = std::min(available, facts[static_cast<size_t>(rank)].available_bytes);
    }
    if (needed <= available) continue;
    const RankFacts& first = facts[static_cast<size_t>(ranks.front())];
    const bool on_gpu = first.gpu != kNoGpu;
    with_copies &= !on_gpu;
    return absl::ResourceExhaustedError(absl::StrCat(
        with_copies ? "weights, KV cache and copies of its blocks of " : "weights and KV cache of ",
        FormatRanks(ranks), " take ", GiB(needed), ", ", first.host,
        on_gpu ? absl::StrCat("'s GPU ", first.gpu) : "", " has ", GiB(available),
        " of memory available", on_gpu ? " to it" : "", WaysOut(first),
        with_copies ? "lower --kv-offload-gib, " : "", "lower --kv-cache-gib if it was told, or ",
        MoreOf(needed, available, on_gpu)));
  }
  return absl::OkStatus();
}

// Of hosts whose ranks have GPUs.
absl::Status CheckHostMemory(std::span<const RankFacts> facts) {
  std::map<int, std::vector<int>> ranks_of_node;
  for (int rank = 0; rank < std::ssize(facts); ++rank) {
    const RankFacts& fact = facts[static_cast<size_t>(rank)];
    if (fact.gpu != kNoGpu && fact.offload_bytes > 0) ranks_of_node[fact.node].push_back(rank);
  }
  for (const auto& [node, ranks] : ranks_of_node) {
    const RankFacts& first = facts[static_cast<size_t>(ranks.front())];
    int64_t needed = 0;
    int64_t available = first.host_available_bytes;
    for (const int rank : ranks) {
      const RankFacts& fact = facts[static_cast<size_t>(rank)];
      available = std::min(available, fact.host_available_bytes);
      if (__builtin_add_overflow(needed, fact.offload_bytes, &needed)) needed = INT64_MAX;
    }
    if (needed <= available) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "copies of KV blocks of ", FormatRanks(ranks), " take ", GiB(needed), ", ", first.host,
        " has ", GiB(available), " of memory available: lower --kv-offload-gib"));
  }
  return absl::OkStatus();
}

double BytesPerSecond(double seconds) {
  constexpr double kBytes = static_cast<double>(kLargeFloats * sizeof(float));
  return kBytes / std::max(seconds, 1e-9);
}

class LinkTimer {
 public:
  LinkTimer(Backend& backend, const DeviceBuffer& memory) : backend_(backend), memory_(memory) {}

  absl::StatusOr<LinkSpeed> AllReduce(Communicator& group) const {
    ASSIGN_OR_RETURN(const double small, AllReduceSeconds(group, kSmallFloats, kSmallRounds));
    ASSIGN_OR_RETURN(const double large, AllReduceSeconds(group, kLargeFloats, kLargeRounds));
    return LinkSpeed{absl::Seconds(small), BytesPerSecond(large)};
  }

  // The memory must have so many.
  absl::StatusOr<double> AllReduceSeconds(Communicator& group, int64_t num_floats,
                                          int num_rounds) const {
    return TimeRounds(num_rounds, [&] { return group.AllReduceSum(buffer(), num_floats); });
  }

  // To a peer that echoes: there and back, or there and a short answer.
  absl::StatusOr<LinkSpeed> Sending(Communicator& group, int peer) const {
    const auto round = [&](int64_t bytes) -> absl::Status {
      RETURN_IF_ERROR(group.Send(peer, buffer(), bytes));
      return group.Recv(peer, answer(), kAnswerBytes);
    };
    ASSIGN_OR_RETURN(const double small,
                     TimeRounds(kSmallRounds, [&] { return round(kAnswerBytes); }));
    ASSIGN_OR_RETURN(const double large,
                     TimeRounds(kLargeRounds, [&] { return round(kLargeBytes); }));
    // On a busy machine the small message may take longer than the large one.
    return LinkSpeed{absl::Seconds(small / 2),
                     BytesPerSecond(std::max(large - small / 2, large / 2))};
  }

  absl::Status Echo(Communicator& group, int peer) const {
    const auto answer_all = [&](int num_rounds, int64_t bytes) -> absl::Status {
      for (int i = 0; i < kWarmUps + kBatches * num_rounds; ++i) {
        RETURN_IF_ERROR(group.Recv(peer, buffer(), bytes));
        RETURN_IF_ERROR(group.Send(peer, answer(), kAnswerBytes));
      }
      backend_.Synchronize();
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(answer_all(kSmallRounds, kAnswerBytes));
    return answer_all(kLargeRounds, kLargeBytes);
  }

  static constexpr int64_t kAnswerBytes = sizeof(int64_t);
  static constexpr int64_t kLargeBytes = kLargeFloats * int64_t{sizeof(float)};

 private:
  float* buffer() const { return memory_.as<float>(); }
  void* answer() const { return memory_.as<std::byte>() + kLargeBytes; }

  // Seconds of a round in the best of three batches, after warming up: a rank's own share of a
  // round says little, because ranks wait for each other in turns, and batches that the machine
  // disturbed say little about the link. Everybody of the group does the same rounds.
  template <typename Round>
  absl::StatusOr<double> TimeRounds(int num_rounds, const Round& round) const {
    for (int i = 0; i < kWarmUps; ++i) RETURN_IF_ERROR(round());
    double best = std::numeric_limits<double>::infinity();
    for (int batch = 0; batch < kBatches; ++batch) {
      backend_.Synchronize();
      const absl::Time begin = SteadyNow();
      for (int i = 0; i < num_rounds; ++i) RETURN_IF_ERROR(round());
      backend_.Synchronize();
      best = std::min(best, absl::ToDoubleSeconds(SteadyNow() - begin) / num_rounds);
    }
    return best;
  }

  Backend& backend_;
  const DeviceBuffer& memory_;  // zeros: what is sent, and room for an answer
};

}  // namespace

absl::StatusOr<std::vector<RankFacts>> GatherFacts(const ProcessGrid& grid, RankGroups& groups,
                                                   const RankFacts& mine, PreflightMemory& memory) {
  FactsRecord record;
  std::memcpy(record.host.data(), mine.host.data(),
              std::min(mine.host.size(), record.host.size() - 1));
  record.node = mine.node;
  record.needed_bytes = mine.needed_bytes;
  record.available_bytes = mine.available_bytes;
  record.gpu = mine.gpu;
  record.foreign_bytes = mine.foreign_bytes;
  record.offload_bytes = mine.offload_bytes;
  record.host_available_bytes = mine.host_available_bytes;
  // First over my stage, then the stages: the order of ranks.
  constexpr int64_t kBytes = sizeof(FactsRecord);
  memory.facts.resize(static_cast<size_t>((1 + grid.tp() + grid.world_size()) * kBytes));
  char* const of_me = memory.facts.data();
  char* const of_stage = of_me + kBytes;
  char* const of_all = of_stage + grid.tp() * kBytes;
  std::memcpy(of_me, &record, kBytes);
  RETURN_IF_ERROR(groups.tp->AllGather(of_me, kBytes, of_stage));
  RETURN_IF_ERROR(groups.pp->AllGather(of_stage, grid.tp() * kBytes, of_all));
  std::vector<RankFacts> facts;
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    FactsRecord each;
    std::memcpy(&each, of_all + rank * kBytes, kBytes);
    facts.push_back({std::string(each.host.data(), ::strnlen(each.host.data(), each.host.size())),
                     static_cast<int>(each.node), each.needed_bytes, each.available_bytes,
                     static_cast<int>(each.gpu), each.foreign_bytes, each.offload_bytes,
                     each.host_available_bytes});
  }
  return facts;
}

absl::Status CheckFacts(const ProcessGrid& grid, std::span<const RankFacts> facts,
                        bool allow_tp_across_nodes) {
  if (!allow_tp_across_nodes) {
    std::vector<RankPlace> places;
    for (const RankFacts& each : facts) places.push_back({each.node, each.host});
    RETURN_IF_ERROR(CheckTpInsideNodes(grid, places));
  }
  RETURN_IF_ERROR(CheckMemory(facts));
  return CheckHostMemory(facts);
}

absl::StatusOr<std::vector<absl::Duration>> MeasureAllReduces(Communicator& group, Backend& backend,
                                                              std::span<const int64_t> sizes) {
  if (sizes.empty()) return std::vector<absl::Duration>();
  ASSIGN_OR_RETURN(const DeviceBuffer memory,
                   backend.Allocate(*std::max_element(sizes.begin(), sizes.end())));
  const LinkTimer timer(backend, memory);
  std::vector<absl::Duration> times;
  for (const int64_t bytes : sizes) {
    ASSIGN_OR_RETURN(const double seconds,
                     timer.AllReduceSeconds(group, bytes / int64_t{sizeof(float)}, kSmallRounds));
    times.push_back(absl::Seconds(seconds));
  }
  return times;
}

absl::StatusOr<LinkSpeeds> MeasureLinks(RankGroups& groups, Backend& backend,
                                        PreflightMemory& memory) {
  ASSIGN_OR_RETURN(memory.links,
                   backend.Allocate(LinkTimer::kLargeBytes + LinkTimer::kAnswerBytes));
  const LinkTimer timer(backend, memory.links);
  LinkSpeeds speeds;
  if (groups.tp->size() > 1) {
    ASSIGN_OR_RETURN(speeds.tp, timer.AllReduce(*groups.tp));
  }
  // One border between stages after the other, from the first on.
  const int stage = groups.pp->rank();
  if (stage > 0) RETURN_IF_ERROR(timer.Echo(*groups.pp, stage - 1));
  if (stage + 1 < groups.pp->size()) {
    ASSIGN_OR_RETURN(speeds.next_stage, timer.Sending(*groups.pp, stage + 1));
  }
  return speeds;
}

}  // namespace lockstep
