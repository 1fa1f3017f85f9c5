#include "kernels/cpu/pack_rows.h"

#include <bit>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

using Words4 = uint32_t __attribute__((vector_size(16)));
using Words8 = uint32_t __attribute__((vector_size(32)));
constexpr int64_t kTileRows = 8;
constexpr int64_t kTileWords = 4;

// Word w of each of the eight rows goes to line w. Rows r and r + 4 share a register from the
// start, so that nothing has to cross its halves.
[[gnu::always_inline]] inline void TransposeTile(const char* const* from, int64_t offset,
                                                 int64_t line_bytes, char* to) {
  Words8 row[4];
  for (int64_t r = 0; r < 4; ++r) {
    Words4 first, second;
    std::memcpy(&first, from[r] + offset, sizeof(first));
    std::memcpy(&second, from[r + 4] + offset, sizeof(second));
    row[r] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
  }
  Words8 pairs[4];  // of words 0 and 1 of rows 0, 1 and of rows 2, 3; then of words 2 and 3
  for (int64_t i = 0; i < 2; ++i) {
    const Words8 a = row[2 * i], b = row[2 * i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 2] = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int64_t i = 0; i < 2; ++i) {
    const Words8 a = pairs[2 * i], b = pairs[2 * i + 1];
    const Words8 even = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
    const Words8 odd = __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    std::memcpy(to + 2 * i * line_bytes, &even, sizeof(even));
    std::memcpy(to + (2 * i + 1) * line_bytes, &odd, sizeof(odd));
  }
}

struct WordBlock {
  const char* const* rows;
  int64_t num_rows;
  int64_t num_words;
  int64_t line_bytes;
};

// Eight rows at a time along k: the lines of a chunk stay in the first-level cache until all rows
// have been there, while rows that lie a power of two apart would push each other out of it.
[[gnu::always_inline]] inline void TransposeBlock(const WordBlock& block, char* to) {
  const auto copy_words = [&](int64_t row, int64_t begin) {
    for (int64_t word = begin; word < block.num_words; ++word) {
      std::memcpy(to + word * block.line_bytes + row * 4, block.rows[row] + word * 4, 4);
    }
  };
  int64_t row = 0;
  for (; row + kTileRows <= block.num_rows; row += kTileRows) {
    int64_t word = 0;
    for (; word + kTileWords <= block.num_words; word += kTileWords) {
      TransposeTile(block.rows + row, word * 4, block.line_bytes,
                    to + word * block.line_bytes + row * 4);
    }
    for (int64_t r = row; r < row + kTileRows; ++r) copy_words(r, word);
  }
  for (; row < block.num_rows; ++row) copy_words(row, 0);
}

void TransposePortably(const WordBlock& block, char* to) { TransposeBlock(block, to); }

#if defined(__x86_64__)
// Bytes are moved, not computed with: no instruction set that a user chose changes the result.
[[gnu::target("avx2")]] void TransposeAvx2(const WordBlock& block, char* to) {
  TransposeBlock(block, to);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#else
constexpr bool kHasAvx2 = false;
constexpr auto TransposeAvx2 = TransposePortably;
#endif

template <DType kFrom, DType kTo>
uint32_t BitsOf(const char* row, int64_t k) {
  const float value = HostElement(row, kFrom, k);
  return kTo == DType::kF32 ? std::bit_cast<uint32_t>(value) : ToBF16(value).bits;
}

template <DType kFrom, DType kTo>
void ConvertRow(const char* row, int64_t count, uint32_t* words) {
  if constexpr (kTo == DType::kF32) {
    for (int64_t k = 0; k < count; ++k) words[k] = BitsOf<kFrom, kTo>(row, k);
  } else {
    for (int64_t pair = 0; pair < count / 2; ++pair) {
      words[pair] = BitsOf<kFrom, kTo>(row, 2 * pair) | BitsOf<kFrom, kTo>(row, 2 * pair + 1) << 16;
    }
    if (count % 2 != 0) words[count / 2] = BitsOf<kFrom, kTo>(row, count - 1);
  }
}

using ConvertFunction = void (*)(const char* row, int64_t count, uint32_t* words);

template <DType kTo>
ConvertFunction ConvertFrom(DType from) {
  switch (from) {
    case DType::kF32:
      return ConvertRow<DType::kF32, kTo>;
    case DType::kF16:
      return ConvertRow<DType::kF16, kTo>;
    case DType::kBF16:
      return ConvertRow<DType::kBF16, kTo>;
    case DType::kE4M3:
      break;
  }
  LS_CHECK(false) << "no dtype of weights: " << DTypeName(from);
  return nullptr;
}

}  // namespace

void PackRows(const HostRows& rows, const PackChunk& chunk, DType to, int64_t columns, char* out) {
  const int64_t count = chunk.k1 - chunk.k0;
  const int64_t per_word = to == DType::kBF16 ? 2 : 1;
  const bool as_it_lies = rows.dtype == to && count % per_word == 0;
  const ConvertFunction convert = to == DType::kBF16 ? ConvertFrom<DType::kBF16>(rows.dtype)
                                                     : ConvertFrom<DType::kF32>(rows.dtype);
  uint32_t converted[kMaxPanelColumns][kPackChunk];
  const char* words[kMaxPanelColumns];
  for (int64_t r = 0; r < chunk.num_rows; ++r) {
    words[r] = static_cast<const char*>(rows.data) + (chunk.first + r) * rows.row_stride_bytes +
               chunk.k0 * DTypeBytes(rows.dtype);
    if (as_it_lies) continue;
    convert(words[r], count, converted[r]);
    words[r] = reinterpret_cast<const char*>(converted[r]);
  }
  const WordBlock block = {words, chunk.num_rows, (count + per_word - 1) / per_word, columns * 4};
  (kHasAvx2 ? TransposeAvx2 : TransposePortably)(block, out);
}

}  // namespace lockstep::cpu
