#include "launcher/gateway/assistant_text.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// Of what goes on: the bytes behind those that were told, which are these from now on.
std::string NewBytes(absl::string_view sure, size_t& num_told) {
  const size_t begin = std::min(num_told, sure.size());
  num_told = std::max(num_told, sure.size());
  return std::string(sure.substr(begin));
}

}  // namespace

AssistantText::Piece AssistantText::Read(absl::string_view text, bool has_ended) {
  reader_.Read(text, has_ended);
  Piece piece;
  piece.reasoning = NewBytes(reader_.thought(text), num_reasoning_);
  const absl::string_view answer = reader_.answer(text);
  if (offered_.empty()) {
    piece.content = NewBytes(answer, num_content_);
  } else if (has_ended) {
    ToolOutput output = SplitToolCalls(answer, offered_);
    piece.content = NewBytes(output.content, num_content_);
    piece.calls = std::move(output.calls);
  } else {
    piece.content = NewBytes(answer.substr(0, NumContentBytes(answer, num_content_)), num_content_);
  }
  return piece;
}

}  // namespace lockstep
