#include "launcher/client/served_chat_template.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/chat_template/text_operations.h"
#include "model/grammar/thought.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFetchTimeout = absl::Seconds(60);

bool Thinks(const std::string& source, const v1::GetChatTemplateResponse& response) {
  return response.thinks_in_text() && absl::StrContains(source, grammar::kThoughtEnd);
}

std::map<std::string, std::string> SpecialTokensOf(const v1::GetChatTemplateResponse& response) {
  return {response.special_tokens().begin(), response.special_tokens().end()};
}

// A word that nobody can have said.
std::string UnheardWord() {
  absl::BitGen random;
  return absl::StrCat("goes-on-", absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

std::string TextOf(const std::vector<TextPiece>& pieces) {
  std::string text;
  for (const TextPiece& piece : pieces) text += piece.text;
  return text;
}

void Truncate(size_t num_bytes, std::vector<TextPiece>& pieces) {
  size_t begin = 0;
  for (TextPiece& piece : pieces) {
    piece.text.resize(std::min(piece.text.size(), num_bytes - begin));
    begin += piece.text.size();
  }
  while (!pieces.empty() && pieces.back().text.empty()) pieces.pop_back();
}

}  // namespace

nlohmann::ordered_json ConversationOf(const std::vector<ChatMessage>& messages) {
  nlohmann::ordered_json variables = {{"add_generation_prompt", true},
                                      {"messages", nlohmann::ordered_json::array()}};
  for (const ChatMessage& message : messages) {
    variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  return variables;
}

v1::TokenizeRequest TokenizeRequestOf(const std::vector<TextPiece>& pieces) {
  v1::TokenizeRequest request;
  for (const TextPiece& piece : pieces) {
    v1::TextPiece& part = *request.add_pieces();
    part.set_text(piece.text);
    part.set_is_markup(piece.is_markup);
  }
  return request;
}

absl::StatusOr<ServedChatTemplate> ServedChatTemplate::Make(
    const std::string& source, const v1::GetChatTemplateResponse& response) {
  auto parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's chat template is not understood: ", parsed.status().message()));
  }
  ServedChatTemplate served(source, *std::move(parsed));
  served.thinks_ = Thinks(source, response);
  served.special_tokens_ = SpecialTokensOf(response);
  return served;
}

bool ServedChatTemplate::IsOf(const std::string& source,
                              const v1::GetChatTemplateResponse& response) const {
  return source == source_ && Thinks(source, response) == thinks_ &&
         SpecialTokensOf(response) == special_tokens_;
}

absl::StatusOr<std::vector<TextPiece>> ServedChatTemplate::Render(
    nlohmann::ordered_json input) const {
  ChatVariables variables;
  variables.input = std::move(input);
  variables.markup.assign(special_tokens_.begin(), special_tokens_.end());
  auto pieces = template_.Render(variables);
  const absl::Status& status = pieces.status();
  if (absl::IsFailedPrecondition(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's chat template refuses this: ", status.message()));
  }
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's chat template cannot be run on this: ", status.message()));
  }
  return pieces;
}

absl::StatusOr<std::vector<TextPiece>> ServedChatTemplate::RenderToContinue(
    nlohmann::ordered_json input) const {
  auto& content = input["messages"].back()["content"].get_ref<std::string&>();
  const std::string said = content.substr(SkipForward(content, 0, jinja::IsPythonSpace));
  const std::string word = UnheardWord();
  absl::StrAppend(&content, word, " ");
  ASSIGN_OR_RETURN(std::vector<TextPiece> pieces, Render(std::move(input)));
  const std::string text = TextOf(pieces);
  const size_t end = text.rfind(word);
  const absl::string_view before = absl::string_view(text).substr(0, end);
  if (end == std::string::npos || !absl::EndsWith(before, said)) {
    return absl::InvalidArgumentError(
        "the model's chat template does not write the last message as it is: it cannot be "
        "continued");
  }
  // Templates that cut off spaces do so where the message ends, too.
  const bool is_cut = text[end + word.size()] != ' ';
  Truncate(is_cut ? SkipBackward(text, 0, end, jinja::IsPythonSpace) : end, pieces);
  return pieces;
}

v1::Thought ServedChatTemplate::ThoughtAfter(const std::vector<TextPiece>& prompt) const {
  if (!thinks_) return v1::THOUGHT_NONE;
  std::string end;  // as far as the template has written it
  for (auto piece = prompt.rbegin(); piece != prompt.rend() && piece->is_markup; ++piece) {
    end.insert(0, piece->text);
    if (!absl::StripTrailingAsciiWhitespace(end).empty()) break;
  }
  const absl::string_view said = absl::StripTrailingAsciiWhitespace(end);
  if (absl::EndsWith(said, grammar::kThoughtBegin)) return v1::THOUGHT_BEGUN;
  if (absl::EndsWith(said, grammar::kThoughtEnd)) return v1::THOUGHT_NONE;
  return v1::THOUGHT_ALLOWED;
}

v1::Thought ServedChatTemplate::ThoughtWithin(absl::string_view begun) const {
  const size_t begin = begun.rfind(grammar::kThoughtBegin);
  const size_t end = begun.rfind(grammar::kThoughtEnd);
  const bool is_open =
      begin != absl::string_view::npos && (end == absl::string_view::npos || end < begin);
  return thinks_ && is_open ? v1::THOUGHT_BEGUN : v1::THOUGHT_NONE;
}

absl::StatusOr<TrustedPrompt> ServedChatTemplate::RenderTrusted(
    const std::vector<ChatMessage>& messages) const {
  ASSIGN_OR_RETURN(const std::vector<TextPiece> pieces, Render(ConversationOf(messages)));
  return TrustedPrompt{TextOf(pieces), ThoughtAfter(pieces)};
}

absl::StatusOr<std::optional<ServedChatTemplate>> FetchChatTemplate(const Connection& connection) {
  grpc::ClientContext context;
  connection.Prepare(context, kFetchTimeout);
  v1::GetChatTemplateResponse response;
  const grpc::Status status = connection.stub().GetChatTemplate(&context, {}, &response);
  if (!status.ok()) return connection.Explain(status);
  if (response.source().empty()) return std::nullopt;
  ASSIGN_OR_RETURN(ServedChatTemplate served,
                   ServedChatTemplate::Make(response.source(), response));
  return served;
}

}  // namespace lockstep
