#include "model/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "kernels/base/check.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

// Before U+0300 no character changes, nor does it join what comes before it (NFC_QC of
// DerivedNormalizationProps.txt). 0xcc begins U+0300.
bool MayChange(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0xcc; });
}

int CombiningClass(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

std::vector<utf8proc_int32_t> Decomposed(std::string_view text) {
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size() / 2);
  std::array<utf8proc_int32_t, 32> parts;  // no canonical decomposition has more than 4
  while (!text.empty()) {
    const Utf8Unit unit = NextUtf8Unit(text);
    text.remove_prefix(unit.num_bytes);
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(unit.code_point), parts.data(),
                                parts.size(), UTF8PROC_DECOMPOSE, nullptr);
    LS_CHECK(count >= 0 && count <= std::ssize(parts)) << unit.code_point;
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
  return out;
}

// Marks between two characters that are none, by their classes. utf8proc's own way takes the square
// of their number.
void OrderMarks(std::vector<utf8proc_int32_t>& code_points) {
  const auto is_mark = [](utf8proc_int32_t c) { return CombiningClass(c) != 0; };
  auto begin = code_points.begin();
  while (true) {
    begin = std::find_if(begin, code_points.end(), is_mark);
    if (begin == code_points.end()) return;
    const auto end = std::find_if_not(begin, code_points.end(), is_mark);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    begin = end;
  }
}

}  // namespace

std::string ToNfc(std::string_view text) {
  if (!MayChange(text)) return std::string(text);
  std::vector<utf8proc_int32_t> code_points = Decomposed(text);
  OrderMarks(code_points);
  const auto count =
      utf8proc_normalize_utf32(code_points.data(), std::ssize(code_points),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  LS_CHECK_GE(count, 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendCodePoint(static_cast<uint32_t>(code_points[static_cast<size_t>(i)]), out);
  }
  return out;
}

}  // namespace lockstep
