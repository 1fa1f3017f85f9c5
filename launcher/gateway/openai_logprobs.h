// Log-probabilities as OpenAI's HTTP API has them. Pure.
#pragma once

#include <string>
#include <vector>

#include "lockstep/v1/generation.pb.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of a chat's token.
nlohmann::ordered_json ChatLogprob(const v1::Logprobs& token);
// Of several.
nlohmann::ordered_json ChatLogprobs(const std::vector<v1::Logprobs>& logprobs);

// The four lists that completions have, of one length.
class CompletionLogprobs {
 public:
  // offset: characters of text before the first token.
  explicit CompletionLogprobs(size_t offset) : offset_(offset) {}

  // A prompt's first token, which has no log-probability.
  void AddFirst(const std::string& text);
  void Add(const v1::Logprobs& token);
  // Characters before whatever is next.
  size_t offset() const { return offset_; }
  // Once.
  nlohmann::ordered_json Take();

 private:
  using Json = nlohmann::ordered_json;
  void Advance(const std::string& text);

  Json tokens_ = Json::array(), logprobs_ = Json::array(), top_ = Json::array(),
       offsets_ = Json::array();
  size_t offset_;
};

}  // namespace lockstep
