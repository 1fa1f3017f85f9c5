#include "runtime/controller/replica_choice.h"

#include <algorithm>
#include <tuple>

#include "kernels/base/check.h"

namespace lockstep {
namespace {

// A sequence that decodes slows a newcomer down by about as much as so many tokens of prompt.
constexpr int64_t kDecodeWeightTokens = 16;

// Both as SGLang's router has them by default: docs/getting-started/load-balancing.md of
// lightseekorg/smg, --balance-abs-threshold and --balance-rel-threshold.
bool IsCrowded(int64_t num_sequences, int64_t fewest) {
  return num_sequences > fewest + 64 && 2 * num_sequences > 3 * fewest;
}

}  // namespace

int ChooseReplicaBy(std::span<const ReplicaLoad> loads) {
  LS_CHECK(!loads.empty());
  const int64_t fewest =
      std::min_element(loads.begin(), loads.end(), [](const auto& a, const auto& b) {
        return a.num_sequences < b.num_sequences;
      })->num_sequences;
  const auto cost = [fewest](const ReplicaLoad& load) {
    const int64_t num_tokens = load.num_uncomputed_tokens +
                               kDecodeWeightTokens * load.num_sequences - load.num_cached_tokens;
    return std::tuple(load.queue_is_full, !load.has_room, IsCrowded(load.num_sequences, fewest),
                      num_tokens);
  };
  const auto best = std::min_element(
      loads.begin(), loads.end(),
      [&](const ReplicaLoad& a, const ReplicaLoad& b) { return cost(a) < cost(b); });
  return static_cast<int>(best - loads.begin());
}

}  // namespace lockstep
