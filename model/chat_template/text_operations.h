// Python's operations on str, of marked text: positions and lengths count characters, what a result
// keeps of a text keeps its marks. Letters beyond ASCII have no case here. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "model/chat_template/marked_text.h"
#include "model/chat_template/value.h"
#include "model/chat_template/work_budget.h"

namespace lockstep::jinja {

// Python's str.isspace.
bool IsPythonSpace(uint32_t code_point);
// Where the white space that ends at `end` begins, not before `low`; where that from `begin` on
// ends.
size_t SpaceBefore(std::string_view text, size_t low, size_t end);
size_t SpaceAfter(std::string_view text, size_t begin);
// Where the character of that number begins; the text's end for the number of all.
size_t CharacterOffset(std::string_view text, int64_t number);
// The characters of a text, each a text of its own.
List Characters(const MarkedText& text);

enum class Side { kLeft, kRight, kBoth };
// chars: which ones to take away; nullopt: white space.
MarkedText Strip(const MarkedText& text, Side side, const std::optional<std::string_view>& chars);
// separator: nullopt: white space, of which neither end counts. max_splits < 0: any number.
List Split(const MarkedText& text, const std::optional<std::string_view>& separator,
           int64_t max_splits, bool from_right);
List SplitLines(const MarkedText& text, bool keeps_ends);
// max_count < 0: all.
absl::StatusOr<MarkedText> ReplaceIn(const MarkedText& text, std::string_view old,
                                     const MarkedText& replacement, int64_t max_count,
                                     WorkBudget& budget);
enum class Case {
  kUpper,
  kLower,
  kTitle,       // str.title: letters after what is none
  kWordBegins,  // Jinja's filter: what follows white space, a hyphen or an opening bracket
  kCapitalized
};
MarkedText WithCase(const MarkedText& text, Case wanted);
// In characters; -1: not there.
int64_t Find(const MarkedText& text, std::string_view wanted, bool from_right);

// [start:stop:step]; step is not 0.
struct SliceBounds {
  std::optional<int64_t> start, stop;
  int64_t step = 1;
};
// The same over num entries, as Python resolves it: from start on, before stop.
struct SliceRange {
  int64_t start = 0, stop = 0;
};
SliceRange Resolve(const SliceBounds& bounds, int64_t num);

}  // namespace lockstep::jinja
