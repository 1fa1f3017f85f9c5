#include "model/grammar/utf8_ranges.h"

#include <algorithm>
#include <string>

#include "model/tokenizer/utf8.h"

namespace lockstep::grammar {
namespace {

// The characters whose UTF-8 has so many bytes, from the first to the last; surrogates have none.
struct Utf8Length {
  CodePointRange range;
  int num_bytes = 1;
};
constexpr Utf8Length kUtf8Lengths[] = {
    {{0x0, 0x7F}, 1},      {{0x80, 0x7FF}, 2},       {{0x800, 0xD7FF}, 3},
    {{0xE000, 0xFFFF}, 3}, {{0x10000, 0x10FFFF}, 4},
};

// Cuts a range of characters of one length until each piece is all sequences of one byte range
// after the other. The cuts are where a lower byte does not run through all of its values
// (Thompson's UTF-8 automata; Cox, "Regular Expression Matching in the Wild", 2010).
void SplitUtf8(CodePointRange range, int num_bytes,
               std::vector<std::vector<ByteRange>>& sequences) {
  for (int i = 1; i < num_bytes; ++i) {
    const char32_t low_bits = (char32_t{1} << (6 * i)) - 1;
    if ((range.first & ~low_bits) == (range.last & ~low_bits)) continue;
    if ((range.first & low_bits) != 0) {
      SplitUtf8({range.first, range.first | low_bits}, num_bytes, sequences);
      SplitUtf8({(range.first | low_bits) + 1, range.last}, num_bytes, sequences);
      return;
    }
    if ((range.last & low_bits) != low_bits) {
      SplitUtf8({range.first, (range.last & ~low_bits) - 1}, num_bytes, sequences);
      SplitUtf8({range.last & ~low_bits, range.last}, num_bytes, sequences);
      return;
    }
  }
  std::string first;
  std::string last;
  AppendCodePoint(range.first, first);
  AppendCodePoint(range.last, last);
  std::vector<ByteRange>& sequence = sequences.emplace_back();
  for (size_t i = 0; i < first.size(); ++i) {
    sequence.push_back({static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])});
  }
}

}  // namespace

std::vector<std::vector<ByteRange>> Utf8Sequences(std::span<const CodePointRange> ranges) {
  std::vector<std::vector<ByteRange>> sequences;
  for (const CodePointRange& range : ranges) {
    for (const auto& [length, num_bytes] : kUtf8Lengths) {
      const char32_t first = std::max(range.first, length.first);
      const char32_t last = std::min(range.last, length.last);
      if (first <= last) SplitUtf8({first, last}, num_bytes, sequences);
    }
  }
  return sequences;
}

}  // namespace lockstep::grammar
