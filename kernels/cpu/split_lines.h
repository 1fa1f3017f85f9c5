// How a split's keys and values lie in lines of memory, to be fetched ahead of their use.
//
// Blocks of the cache lie anywhere, and a decode's few rows are soon done with a key: half of the
// values of the same positions are fetched beside the products with the keys, the other half beside
// the softmax, and beside the products with the values the keys that follow, so that memory is busy
// throughout. Lines are fetched one after the other as they lie: the processor's own prefetching
// then runs ahead of ours (four groups at once cost a tenth of the bandwidth).
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kLineBytes = 64;

// A line holds the positions of a group: as many bytes of each, and as many lines of its values.
template <bool kBf16>
constexpr int64_t LinesPerGroup(int head_dim) {
  return kBf16 ? head_dim / 2 : head_dim;
}

// The values of the later half of the positions, to be fetched in num_steps steps.
template <class V>
class LaterValues {
 public:
  LaterValues(const SplitAttention& args, int64_t lines_per_group, int64_t num_steps)
      : end_(lines_per_group * kLineBytes) {
    const int num_groups = (args.num_positions + kGroupTokens - 1) / kGroupTokens;
    group_ = args.at->v + num_groups / 2;
    num_groups_ = num_groups - num_groups / 2;
    lines_per_step_ = (num_groups_ * lines_per_group + num_steps - 1) / num_steps;
  }

  // Inlined by force: GCC 12 drops calls of functions that do nothing but prefetch.
  [[gnu::always_inline]] void FetchStep() {
    for (int64_t i = 0; i < lines_per_step_ && num_groups_ > 0; ++i) {
      V::PrefetchNear(*group_ + at_);
      at_ += kLineBytes;
      if (at_ < end_) continue;
      at_ = 0;
      ++group_;
      --num_groups_;
    }
  }

 private:
  const char* const* group_;
  int64_t num_groups_;
  const int64_t end_;  // of a group, in bytes
  int64_t at_ = 0;
  int64_t lines_per_step_;
};

// Few rows leave room for four vectors of sums of each, beside the columns: twice the independent
// chains of additions.
template <class V>
constexpr int kFourVectorRows = (2 * V::kTileRows + 1) / 5;
static_assert(kSplitTokens % 64 == 0);  // the positions of four vectors, at most

}  // namespace
}  // namespace lockstep::cpu
