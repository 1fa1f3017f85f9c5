// The lines of memory that hold a split's keys and values, to be fetched ahead of their use.
//
// Blocks of the cache lie anywhere, and a decode's few rows are soon done with a key: beside the
// products with the keys and the softmax, line by line, the values of the same positions are
// fetched, and beside those with the values the keys of the next split, so that memory is busy
// throughout.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

// Lines of memory, to be fetched a few at a time beside other work: of each of num_groups groups
// lines_per_group, stride bytes apart. By default none.
template <class V>
struct LinesAhead {
  const char* const* groups = nullptr;
  int64_t num_groups = 0;
  int64_t lines_per_group = 0;
  int64_t stride = 0;
  int64_t line = 0;  // of the first group, the next to be fetched

  int64_t left() const { return num_groups * lines_per_group - line; }
  // How many to take in each of so many steps, lest any be left.
  int64_t PerStep(int64_t num_steps) const { return (left() + num_steps - 1) / num_steps; }

  // Inlined by force: GCC 12 drops calls of functions that do nothing but prefetch.
  [[gnu::always_inline]] void Fetch(int64_t count) {
    for (; count > 0 && num_groups > 0; --count) {
      V::PrefetchNear(*groups + line * stride);
      if (++line < lines_per_group) continue;
      line = 0;
      ++groups;
      --num_groups;
    }
  }
};

// A line holds the positions of a group: as many bytes of each, and as many lines of its values.
template <bool kBf16>
int64_t LinesPerGroup(const SplitAttention& args) {
  return kBf16 ? args.head_dim / 2 : args.head_dim;
}
template <class V, bool kBf16>
LinesAhead<V> ValueLines(const SplitAttention& args) {
  return {args.at->v, (args.num_positions + kGroupTokens - 1) / kGroupTokens,
          LinesPerGroup<kBf16>(args), 64};
}
template <class V, bool kBf16>
LinesAhead<V> NextKeyLines(const SplitAttention& args) {
  if (args.next == nullptr) return {};
  return {args.next->k, kSplitGroups, LinesPerGroup<kBf16>(args), args.key_line_bytes};
}

// Few rows leave room for four vectors of sums of each, beside the columns: twice the independent
// chains of additions.
template <class V>
constexpr int kFourVectorRows = (2 * V::kTileRows + 1) / 5;
static_assert(kSplitTokens % 64 == 0);  // the positions of four vectors, at most

}  // namespace
}  // namespace lockstep::cpu
