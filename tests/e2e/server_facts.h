// What a test knows of the server that it sends requests to.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "lockstep/v1/generation.pb.h"
#include "model/tokenizer/tokenizer.h"

namespace lockstep::testing {

struct ServerFacts {
  v1::GetServerInfoResponse info;
  const Tokenizer* tokenizer = nullptr;  // null: the model has none
  bool has_journal = false;
  bool caches_prefixes = true;
  bool may_restart = false;  // it has a journal, dies, and comes again at its address

  int vocab_size() const { return info.vocab_size(); }
  int max_model_len() const { return static_cast<int>(info.max_model_len()); }
};

// The tokens of a request's prompt, by our own tokenizer.
inline absl::StatusOr<std::vector<int32_t>> PromptOf(const ServerFacts& facts,
                                                     const v1::GenerateRequest& request) {
  if (!request.has_text()) {
    return std::vector<int32_t>(request.token_ids().ids().begin(), request.token_ids().ids().end());
  }
  return facts.tokenizer->Encode(
      request.text(),
      {.add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens(),
       .parse_special_tokens = request.parse_special_tokens()});
}

}  // namespace lockstep::testing
