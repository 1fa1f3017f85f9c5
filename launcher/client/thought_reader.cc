#include "launcher/client/thought_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "launcher/client/begun_marker.h"
#include "model/grammar/thought.h"

namespace lockstep {
namespace {

constexpr absl::string_view kBegin = grammar::kThoughtBegin;
constexpr absl::string_view kEnd = grammar::kThoughtEnd;

// Where the text goes on behind the line breaks at `from`.
size_t BehindBreaks(absl::string_view text, size_t from) {
  return std::min(text.find_first_not_of('\n', from), text.size());
}

// How much of the text before `end` there is without the line breaks that it ends with.
size_t WithoutBreaks(absl::string_view text, size_t begin, size_t end) {
  while (end > begin && text[end - 1] == '\n') --end;
  return end;
}

}  // namespace

ThoughtReader::ThoughtReader(v1::Thought thought)
    : at_(thought == v1::THOUGHT_BEGUN     ? At::kBreakBefore
          : thought == v1::THOUGHT_ALLOWED ? At::kBegin
                                           : At::kAnswer) {}

void ThoughtReader::ReadBegin(absl::string_view text, bool has_ended) {
  const absl::string_view begun = absl::StripLeadingAsciiWhitespace(text);
  if (absl::StartsWith(begun, kBegin)) {
    at_ = At::kBreakBefore;
    next_ = text.size() - begun.size() + kBegin.size();
  } else if (has_ended || !absl::StartsWith(kBegin, begun)) {
    at_ = At::kAnswer;
    answer_begin_ = 0;
  }
}

void ThoughtReader::ReadThought(absl::string_view text, bool has_ended) {
  const size_t end = text.find(kEnd, next_);
  if (end != absl::string_view::npos) {
    thought_end_ = WithoutBreaks(text, thought_begin_, end);
    at_ = At::kBreakAfter;
    next_ = end + kEnd.size();
    return;
  }
  const size_t sure = has_ended ? text.size() : text.size() - NumBegun(text, kEnd);
  next_ = std::max(next_, sure);
  thought_end_ = WithoutBreaks(text, thought_begin_, sure);
}

void ThoughtReader::Read(absl::string_view text, bool has_ended) {
  if (at_ == At::kBegin) ReadBegin(text, has_ended);
  if (at_ == At::kBreakBefore) {
    thought_begin_ = thought_end_ = next_ = BehindBreaks(text, next_);
    if (next_ < text.size()) at_ = At::kThought;
  }
  if (at_ == At::kThought) ReadThought(text, has_ended);
  if (at_ == At::kBreakAfter) {
    next_ = BehindBreaks(text, next_);
    if (next_ < text.size()) at_ = At::kAnswer;
    answer_begin_ = next_;
  }
  if (at_ != At::kAnswer) answer_begin_ = text.size();
}

}  // namespace lockstep
