#include "launcher/client/thought_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "launcher/client/begun_marker.h"
#include "model/grammar/thought.h"

namespace lockstep {
namespace {

const absl::string_view kBegin = grammar::kThoughtBegin;
const absl::string_view kEnd = grammar::kThoughtEnd;

// Where the text goes on behind the line breaks at `from`.
size_t BehindBreaks(absl::string_view text, size_t from) {
  return std::min(text.find_first_not_of('\n', from), text.size());
}

}  // namespace

ThoughtReader::ThoughtReader(v1::Thought thought)
    : at_(thought == v1::THOUGHT_BEGUN     ? At::kBreakBefore
          : thought == v1::THOUGHT_ALLOWED ? At::kBegin
                                           : At::kAnswer) {}

void ThoughtReader::ReadBegin(absl::string_view text, bool has_ended) {
  while (next_ < text.size() && absl::ascii_isspace(static_cast<unsigned char>(text[next_]))) {
    ++next_;
  }
  const absl::string_view begun = text.substr(next_);
  if (absl::StartsWith(begun, kBegin)) {
    at_ = At::kBreakBefore;
    next_ += kBegin.size();
  } else if (has_ended || !absl::StartsWith(kBegin, begun)) {
    at_ = At::kAnswer;
    answer_begin_ = 0;
  }
}

void ThoughtReader::ReadThought(absl::string_view text, bool has_ended) {
  const size_t marker = text.find(kEnd, next_);
  const bool ends = marker != absl::string_view::npos;
  const size_t num_begun = has_ended ? 0 : NumBegun(text, kEnd);
  const size_t sure = ends ? marker : std::max(next_, text.size() - num_begun);
  // The line breaks that it has come to may be its last.
  for (size_t end = sure; end > next_; --end) {
    if (text[end - 1] == '\n') continue;
    thought_end_ = end;
    break;
  }
  next_ = ends ? marker + kEnd.size() : sure;
  if (ends) at_ = At::kBreakAfter;
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
