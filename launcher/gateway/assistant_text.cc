#include "launcher/gateway/assistant_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace lockstep {
namespace {

// Of what goes on: the bytes behind those that were told, which are these from now on.
std::string NewBytes(absl::string_view sure, size_t& num_told) {
  const size_t begin = std::min(num_told, sure.size());
  num_told = std::max(num_told, sure.size());
  return std::string(sure.substr(begin));
}

}  // namespace

// What may yet turn out to be a call is kept back.
std::string AssistantText::NewAnswer(absl::string_view answer) {
  if (offered_.empty()) return NewBytes(answer, num_answer_);
  while (num_space_ < answer.size() &&
         absl::ascii_isspace(static_cast<unsigned char>(answer[num_space_]))) {
    ++num_space_;
  }
  const size_t num_told = std::max(num_answer_, num_space_) - num_space_;
  const size_t num_sure = NumContentBytes(answer.substr(num_space_), num_told);
  return num_sure == 0 ? "" : NewBytes(answer.substr(0, num_space_ + num_sure), num_answer_);
}

AssistantText::Piece AssistantText::Read(absl::string_view text, bool has_ended) {
  reader_.Read(text, has_ended);
  Piece piece;
  if (is_apart_) {
    piece.reasoning = NewBytes(reader_.thought(text), num_before_);
  } else {
    piece.content = NewBytes(text.substr(0, reader_.num_before_answer()), num_before_);
  }
  const absl::string_view answer = reader_.answer(text);
  if (!has_ended || offered_.empty()) {
    piece.content += NewAnswer(answer);
  } else {
    ToolOutput output = SplitToolCalls(answer, offered_, form_.calls);
    piece.content += NewBytes(output.content, num_answer_);
    piece.calls = std::move(output.calls);
  }
  return piece;
}

}  // namespace lockstep
