#include "model/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

struct LeadByte {
  size_t num_bytes;           // 0: cannot start a character
  uint8_t second_low = 0x80;  // allowed range of the second byte; later ones are 80..BF
  uint8_t second_high = 0xBF;
};

LeadByte DescribeLead(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xC2) return {0};
  if (lead < 0xE0) return {2};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

// Length of the run of ASCII that `text` begins with.
size_t AsciiPrefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (i < text.size() && static_cast<uint8_t>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Unit NextUtf8Unit(std::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  const LeadByte lead = DescribeLead(first);
  if (lead.num_bytes == 0) return {Utf8Kind::kInvalid, 1, 0};
  if (lead.num_bytes == 1) return {Utf8Kind::kCharacter, 1, first};
  uint32_t code_point = first & (0x7Fu >> lead.num_bytes);
  for (size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == bytes.size()) return {Utf8Kind::kIncomplete, i, 0};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Kind::kCharacter, lead.num_bytes, code_point};
}

size_t FindInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (true) {
    i += AsciiPrefix(text.substr(i));
    if (i == text.size()) return std::string_view::npos;
    const Utf8Unit unit = NextUtf8Unit(text.substr(i));
    if (unit.kind != Utf8Kind::kCharacter) return i;
    i += unit.num_bytes;
  }
}

size_t AppendUtf8Lossy(std::string_view bytes, std::string& out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Unit unit = NextUtf8Unit(bytes.substr(i));
    if (unit.kind == Utf8Kind::kIncomplete) return i;
    if (unit.kind == Utf8Kind::kInvalid) {
      out += kReplacementCharacter;
    } else {
      out.append(bytes.substr(i, unit.num_bytes));
    }
    i += unit.num_bytes;
  }
  return i;
}

void AppendCodePoint(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | (code_point >> 6));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | (code_point >> 12));
    out += static_cast<char>(0x80 | ((code_point >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code_point >> 18));
    out += static_cast<char>(0x80 | ((code_point >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code_point >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  }
}

int64_t NumCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t SkipBackward(std::string_view text, size_t low, size_t end, bool (*goes)(uint32_t)) {
  while (end > low) {
    size_t start = end - 1;
    while (start > low && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (!goes(NextUtf8Unit(text.substr(start)).code_point)) break;
    end = start;
  }
  return end;
}

size_t SkipForward(std::string_view text, size_t begin, bool (*goes)(uint32_t)) {
  while (begin < text.size()) {
    const Utf8Unit unit = NextUtf8Unit(text.substr(begin));
    if (!goes(unit.code_point)) break;
    begin += unit.num_bytes;
  }
  return begin;
}

std::string ReplaceAll(std::string_view text, std::string_view pattern,
                       std::string_view replacement) {
  std::string result;
  size_t copied = 0;
  for (size_t at; (at = text.find(pattern, copied)) != std::string_view::npos;) {
    result.append(text.substr(copied, at - copied)).append(replacement);
    copied = at + pattern.size();
  }
  return result.append(text.substr(copied));
}

}  // namespace lockstep
