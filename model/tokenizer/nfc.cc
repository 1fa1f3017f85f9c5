#include "model/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
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

// Marks that came after Unicode 9: to tokenizers they are characters of no class, which end what
// comes before them as letters do. Ranges, by DerivedAge.txt of Unicode 15; the last one is no
// mark, but the second part of kLaterLetter.
struct Range32 {
  utf8proc_int32_t first;
  utf8proc_int32_t last;
};
constexpr Range32 kLaterMarks[] = {
    {0x07fd, 0x07fd},   {0x0898, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
    {0x0c3c, 0x0c3c},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};
// The one letter since then that consists of two.
constexpr utf8proc_int32_t kLaterLetter = 0x11938;

bool IsLaterMark(utf8proc_int32_t code_point) {
  const auto after =
      std::upper_bound(std::begin(kLaterMarks), std::end(kLaterMarks), code_point,
                       [](utf8proc_int32_t c, const Range32& range) { return c < range.first; });
  return after != std::begin(kLaterMarks) && code_point <= std::prev(after)->last;
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
    const auto code_point = static_cast<utf8proc_int32_t>(unit.code_point);
    if (code_point == kLaterLetter) {
      out.push_back(code_point);
      continue;
    }
    const auto count = utf8proc_decompose_char(code_point, parts.data(), parts.size(),
                                               UTF8PROC_DECOMPOSE, nullptr);
    LS_CHECK(count >= 0 && count <= std::ssize(parts)) << unit.code_point;
    out.insert(out.end(), parts.begin(), parts.begin() + count);
  }
  return out;
}

// Marks between two characters that are none, by their classes. utf8proc's own way takes the square
// of their number.
void OrderMarks(std::span<utf8proc_int32_t> code_points) {
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

// Appends what they are together, none of them a later mark but perhaps the first.
void AppendComposed(std::span<utf8proc_int32_t> code_points, std::string& out) {
  if (!code_points.empty() && IsLaterMark(code_points[0])) {
    AppendCodePoint(static_cast<uint32_t>(code_points[0]), out);
    code_points = code_points.subspan(1);
  }
  OrderMarks(code_points);
  const auto count =
      utf8proc_normalize_utf32(code_points.data(), std::ssize(code_points),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  LS_CHECK_GE(count, 0);
  for (const utf8proc_int32_t c : code_points.first(static_cast<size_t>(count))) {
    AppendCodePoint(static_cast<uint32_t>(c), out);
  }
}

}  // namespace

std::string ToNfc(std::string_view text) {
  if (!MayChange(text)) return std::string(text);
  std::vector<utf8proc_int32_t> code_points = Decomposed(text);
  std::string out;
  out.reserve(text.size());
  std::span<utf8proc_int32_t> rest = code_points;
  while (!rest.empty()) {
    const auto end = std::find_if(rest.begin() + 1, rest.end(), IsLaterMark);
    const auto count = static_cast<size_t>(end - rest.begin());
    AppendComposed(rest.first(count), out);
    rest = rest.subspan(count);
  }
  return out;
}

}  // namespace lockstep
