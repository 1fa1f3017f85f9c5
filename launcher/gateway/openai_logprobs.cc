#include "launcher/gateway/openai_logprobs.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// A token as a name: tokens that are a part of a character alone are told by their bytes, as OpenAI
// does.
std::string TokenName(const std::string& text) {
  if (!FirstInvalidUtf8(text)) return text;
  std::string name = "bytes:";
  for (const char byte : text) {
    absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(byte)));
  }
  return name;
}

Json ChatToken(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char byte : token.text()) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", ValidUtf8(token.text())}, {"logprob", token.logprob()}, {"bytes", bytes}};
}

}  // namespace

Json ChatLogprob(const v1::Logprobs& token) {
  Json entry = ChatToken(token.token());
  entry["top_logprobs"] = Json::array();
  for (const v1::TokenLogprob& top : token.top()) entry["top_logprobs"].push_back(ChatToken(top));
  return entry;
}

Json ChatLogprobs(const std::vector<v1::Logprobs>& logprobs) {
  Json content = Json::array();
  for (const v1::Logprobs& token : logprobs) content.push_back(ChatLogprob(token));
  return {{"content", std::move(content)}};
}

void CompletionLogprobs::AddFirst(const std::string& text) {
  tokens_.push_back(TokenName(text));
  logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
  Advance(text);
}

void CompletionLogprobs::Add(const v1::Logprobs& token) {
  const v1::TokenLogprob& chosen = token.token();
  tokens_.push_back(TokenName(chosen.text()));
  logprobs_.push_back(chosen.logprob());
  Json all = Json::object();
  // Tokens of one text ("a", and byte 0x61) have one name: the likeliest's, which comes first.
  for (const v1::TokenLogprob& top : token.top()) all.emplace(TokenName(top.text()), top.logprob());
  all.emplace(TokenName(chosen.text()), chosen.logprob());
  top_.push_back(std::move(all));
  Advance(chosen.text());
}

void CompletionLogprobs::Advance(const std::string& text) {
  offsets_.push_back(offset_);
  offset_ += static_cast<size_t>(NumCharacters(text));
}

Json CompletionLogprobs::Take() {
  return {{"tokens", std::move(tokens_)},
          {"token_logprobs", std::move(logprobs_)},
          {"top_logprobs", std::move(top_)},
          {"text_offset", std::move(offsets_)}};
}

}  // namespace lockstep
