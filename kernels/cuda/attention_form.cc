#include "kernels/cuda/attention_form.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/cuda/attention_work.h"

namespace lockstep::cuda {
namespace {

// Bits of AttentionForm::Packed.
constexpr int kRowsBits = 8;
constexpr int kLaunchesBits = 11;
constexpr int kCountBits = 21;
static_assert(kRowsBits + 3 + kLaunchesBits + 2 * kCountBits == 64);

}  // namespace

uint64_t AttentionForm::Packed() const {
  LS_CHECK(launches < 1 << kLaunchesBits && items < 1 << kCountBits && merges < 1 << kCountBits)
      << launches << " launches of " << items << " items";
  uint64_t packed = static_cast<uint64_t>(tile_rows);
  packed = packed << 1 | (decode ? 1 : 0);
  packed = packed << 1 | (one_tile ? 1 : 0);
  packed = packed << 1 | (several_splits ? 1 : 0);
  packed = packed << kLaunchesBits | static_cast<uint64_t>(launches);
  packed = packed << kCountBits | static_cast<uint64_t>(items);
  return packed << kCountBits | static_cast<uint64_t>(merges);
}

AttentionForm AttentionForm::Unpacked(uint64_t packed) {
  const auto take = [&](int bits) {
    const uint64_t value = packed & ((uint64_t{1} << bits) - 1);
    packed >>= bits;
    return static_cast<int>(value);
  };
  AttentionForm form;
  form.merges = take(kCountBits);
  form.items = take(kCountBits);
  form.launches = take(kLaunchesBits);
  form.several_splits = take(1) != 0;
  form.one_tile = take(1) != 0;
  form.decode = take(1) != 0;
  form.tile_rows = take(kRowsBits);
  return form;
}

int64_t AttentionForm::LaunchBytes() const {
  return int64_t{sizeof(AttentionHeader)} +
         (int64_t{items} + merges) * int64_t{sizeof(AttentionItem)};
}

int AttentionForm::PartialRows(const AttentionHeads& heads) const {
  return decode ? std::min(tile_rows, heads.num_heads / heads.num_kv_heads) : tile_rows;
}

int64_t AttentionPartialRows(const AttentionHeads& heads, int64_t workspace_bytes) {
  constexpr int64_t kStats = 2;  // a maximum and a sum beside the values
  const int64_t row_bytes = (heads.head_dim + kStats) * int64_t{sizeof(float)};
  return workspace_bytes / (row_bytes * heads.num_kv_heads);
}

}  // namespace lockstep::cuda
