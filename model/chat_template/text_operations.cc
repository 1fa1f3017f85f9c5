#include "model/chat_template/text_operations.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "kernels/base/status_macros.h"
#include "model/tokenizer/utf8.h"

namespace lockstep::jinja {
namespace {

struct Character {
  size_t begin;
  size_t end;
  uint32_t code_point;
};

std::vector<Character> CharactersOf(std::string_view text) {
  std::vector<Character> characters;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = NextUtf8Unit(text.substr(at));
    characters.push_back({at, at + unit.num_bytes, unit.code_point});
    at += unit.num_bytes;
  }
  return characters;
}

List SplitAtSpace(const MarkedText& text, int64_t max_splits, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  bool in_word = false;
  for (const Character& character : CharactersOf(text.text())) {
    const bool is_space = IsPythonSpace(character.code_point);
    if (!is_space && !in_word) words.emplace_back(character.begin, character.end);
    if (!is_space) words.back().second = character.end;
    in_word = !is_space;
  }
  // The rest is one, with the white space at its outer end.
  if (max_splits >= 0 && static_cast<int64_t>(words.size()) > max_splits) {
    if (from_right) {
      words.erase(words.begin(), words.end() - max_splits - 1);
      words.front().first = 0;
    } else {
      words.resize(static_cast<size_t>(max_splits) + 1);
      words.back().second = text.size();
    }
  }
  List parts;
  for (const auto& [begin, end] : words) parts.push_back(Value::Of(text.Range(begin, end)));
  return parts;
}

bool IsLineEnd(uint32_t code_point) {
  return (code_point >= 0x0A && code_point <= 0x0D) || (code_point >= 0x1C && code_point <= 0x1E) ||
         code_point == 0x85 || code_point == 0x2028 || code_point == 0x2029;
}

// Beyond ASCII mostly Latin, Greek and Cyrillic letters.
bool HasLetterCase(uint32_t code) {
  if (code < 0x80) return absl::ascii_isalpha(static_cast<unsigned char>(code));
  return (code >= 0xC0 && code <= 0x52F) || (code >= 0x1E00 && code <= 0x1FFF);
}

}  // namespace

// Unicode's white space, and the separators among the controls.
bool IsPythonSpace(uint32_t code_point) {
  return IsWhiteSpace(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

size_t SpaceBefore(std::string_view text, size_t low, size_t end) {
  return SkipBackward(text, low, end, &IsPythonSpace);
}

size_t SpaceAfter(std::string_view text, size_t begin) {
  return SkipForward(text, begin, &IsPythonSpace);
}

size_t CharacterOffset(std::string_view text, int64_t number) {
  size_t at = 0;
  for (; number > 0 && at < text.size(); --number) at += NextUtf8Unit(text.substr(at)).num_bytes;
  return at;
}

List Characters(const MarkedText& text) {
  List list;
  for (const TextPiece& piece : text.Pieces()) {
    for (const Character& c : CharactersOf(piece.text)) {
      list.push_back(
          Value::Of(MarkedText(piece.text.substr(c.begin, c.end - c.begin), piece.is_markup)));
    }
  }
  return list;
}

MarkedText Strip(const MarkedText& text, Side side, const std::optional<std::string_view>& chars) {
  const auto goes = [&](size_t begin, size_t end, uint32_t code_point) {
    if (!chars) return IsPythonSpace(code_point);
    return chars->find(std::string_view(text.text()).substr(begin, end - begin)) !=
           std::string_view::npos;
  };
  size_t begin = 0, end = text.size();
  while (side != Side::kRight && begin < end) {
    const Utf8Unit unit = NextUtf8Unit(std::string_view(text.text()).substr(begin));
    if (!goes(begin, begin + unit.num_bytes, unit.code_point)) break;
    begin += unit.num_bytes;
  }
  while (side != Side::kLeft && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<uint8_t>(text.text()[start]) & 0xC0) == 0x80) --start;
    const Utf8Unit unit = NextUtf8Unit(std::string_view(text.text()).substr(start));
    if (!goes(start, end, unit.code_point)) break;
    end = start;
  }
  return text.Range(begin, end);
}

List Split(const MarkedText& text, const std::optional<std::string_view>& separator,
           int64_t max_splits, bool from_right) {
  if (!separator) return SplitAtSpace(text, max_splits, from_right);
  const std::string& all = text.text();
  List parts;
  int64_t num_splits = 0;
  if (from_right) {
    size_t end = all.size();
    while (max_splits < 0 || num_splits < max_splits) {
      if (end < separator->size()) break;
      const size_t at = all.rfind(*separator, end - separator->size());
      if (at == std::string::npos) break;
      parts.push_back(Value::Of(text.Range(at + separator->size(), end)));
      end = at;
      ++num_splits;
    }
    parts.push_back(Value::Of(text.Range(0, end)));
    std::reverse(parts.begin(), parts.end());
    return parts;
  }
  size_t begin = 0;
  while (max_splits < 0 || num_splits < max_splits) {
    const size_t at = all.find(*separator, begin);
    if (at == std::string::npos) break;
    parts.push_back(Value::Of(text.Range(begin, at)));
    begin = at + separator->size();
    ++num_splits;
  }
  parts.push_back(Value::Of(text.Range(begin, all.size())));
  return parts;
}

List SplitLines(const MarkedText& text, bool keeps_ends) {
  List lines;
  const std::vector<Character> characters = CharactersOf(text.text());
  size_t begin = 0;
  for (size_t i = 0; i < characters.size(); ++i) {
    if (!IsLineEnd(characters[i].code_point)) continue;
    const size_t line_end = characters[i].begin;
    const bool is_pair = characters[i].code_point == '\r' && i + 1 < characters.size() &&
                         characters[i + 1].code_point == '\n';
    if (is_pair) ++i;
    lines.push_back(Value::Of(text.Range(begin, keeps_ends ? characters[i].end : line_end)));
    begin = characters[i].end;
  }
  if (begin < text.size()) lines.push_back(Value::Of(text.Range(begin, text.size())));
  return lines;
}

absl::StatusOr<MarkedText> ReplaceIn(const MarkedText& text, std::string_view old,
                                     const MarkedText& replacement, int64_t max_count,
                                     WorkBudget& budget) {
  MarkedText result;
  int64_t count = 0;
  // What came before it stands, then the replacement.
  const auto replace = [&](size_t begin, size_t end) {
    ++count;
    result.Append(text.Range(begin, end));
    result.Append(replacement);
    return result.size() <= WorkBudget::kMaxTextBytes ? budget.Take(1)
                                                      : budget.TakeText(result.size());
  };
  const auto may_replace = [&] { return max_count < 0 || count < max_count; };
  size_t begin = 0;
  const std::string& all = text.text();
  if (old.empty()) {  // between all characters, and at both ends
    for (const Character& c : CharactersOf(all)) {
      if (!may_replace()) break;
      RETURN_IF_ERROR(replace(begin, c.begin));
      begin = c.begin;
    }
    if (may_replace()) {
      RETURN_IF_ERROR(replace(begin, all.size()));
      begin = all.size();
    }
  }
  while (!old.empty() && may_replace()) {
    const size_t at = all.find(old, begin);
    if (at == std::string::npos) break;
    RETURN_IF_ERROR(replace(begin, at));
    begin = at + old.size();
  }
  result.Append(text.Range(begin, all.size()));
  return result;
}

MarkedText WithCase(const MarkedText& text, Case wanted) {
  std::string changed = text.text();
  bool begins = true;  // a word, or the text
  for (size_t at = 0; at < changed.size();) {
    const Utf8Unit unit = NextUtf8Unit(std::string_view(changed).substr(at));
    char& c = changed[at];
    if (unit.num_bytes == 1) {
      const bool is_upper = wanted == Case::kUpper || (begins && wanted != Case::kLower);
      c = is_upper ? absl::ascii_toupper(c) : absl::ascii_tolower(c);
    }
    if (wanted == Case::kWordBegins) {
      begins = IsPythonSpace(unit.code_point) ||
               (unit.num_bytes == 1 && std::string_view("-({[<").find(c) != std::string_view::npos);
    } else {
      begins = wanted == Case::kTitle && !HasLetterCase(unit.code_point);
    }
    at += unit.num_bytes;
  }
  return text.WithText(std::move(changed));
}

int64_t Find(const MarkedText& text, std::string_view wanted, bool from_right) {
  const std::string& all = text.text();
  const size_t at = from_right ? all.rfind(wanted) : all.find(wanted);
  if (at == std::string::npos) return -1;
  return NumCharacters(std::string_view(all).substr(0, at));
}

SliceRange Resolve(const SliceBounds& bounds, int64_t num) {
  const int64_t step = bounds.step;
  const auto resolve = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    const int64_t at = *bound < 0 ? *bound + num : *bound;
    return std::clamp<int64_t>(at, step < 0 ? -1 : 0, step < 0 ? num - 1 : num);
  };
  return {resolve(bounds.start, step < 0 ? num - 1 : 0), resolve(bounds.stop, step < 0 ? -1 : num)};
}

}  // namespace lockstep::jinja
