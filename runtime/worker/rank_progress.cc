#include "runtime/worker/rank_progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

std::string Describe(Operation operation, uint64_t number) {
  switch (operation) {
    case Operation::kStarting:
      return "starting";
    case Operation::kPreflight:
      return "checking ranks and links";
    case Operation::kLoading:
      return absl::StrCat("loading ", number, " %");
    case Operation::kWaitingForPacking:
      return "waiting for another rank's packing";
    case Operation::kRehearsing:
      return "trying steps of all sizes";
    case Operation::kAllocatingCache:
      return "allocating the KV cache";
    case Operation::kIdle:
      return "idle";
    case Operation::kForward:
      return absl::StrCat("forward step ", number);
    case Operation::kWaitingForTokens:
      return absl::StrCat("waiting for the last stage's tokens, step ", number);
    case Operation::kSampling:
      return absl::StrCat("sampling step ", number);
  }
  return "unknown";
}

}  // namespace

void RankProgress::Begin(Operation operation, uint64_t number) {
  const uint64_t packed = (static_cast<uint64_t>(operation) << kNumberBits) |
                          (number & ((uint64_t{1} << kNumberBits) - 1));
  operation_.store(packed, std::memory_order_relaxed);
  since_ns_.store(NowNs(), std::memory_order_relaxed);
  Advance();
}

RankProgress::Snapshot RankProgress::Read() const {
  const uint64_t packed = operation_.load(std::memory_order_relaxed);
  const int64_t age_ns = NowNs() - since_ns_.load(std::memory_order_relaxed);
  return {.last_step = last_step_.load(std::memory_order_relaxed),
          .operation = Describe(static_cast<Operation>(packed >> kNumberBits),
                                packed & ((uint64_t{1} << kNumberBits) - 1)),
          .operation_age_ms = std::max<int64_t>(0, age_ns / 1000000),
          .operation_sequence = sequence_.load(std::memory_order_relaxed)};
}

}  // namespace lockstep
