// What clients of OpenAI's HTTP API ask for, as requests of ours. Pure.
//
// Fields are those of platform.openai.com/docs/api-reference/completions and /chat, and what vLLM
// adds for options that OpenAI does not have (docs.vllm.ai, "OpenAI-Compatible Server", extra
// parameters). What we cannot do is refused by name, unless it changes nothing; ranges of numbers
// are the server's to check.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lockstep/v1/generation.pb.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of one request.
inline constexpr int kMaxPrompts = 256;

struct OpenAiPrompt {
  std::string text;
  std::vector<int32_t> token_ids;  // used instead of the text when not empty
};

struct OpenAiRequest {
  // Where a chat's answer has the thoughts that come before it.
  enum class Reasoning { kApart, kLeftOut, kInContent };

  bool is_chat = false;
  std::string model;                  // empty = whichever is served
  std::vector<OpenAiPrompt> prompts;  // not of a chat
  nlohmann::ordered_json chat;        // of a chat: its template's variables
  bool continues_message = false;     // the chat's last, which is the assistant's
  std::set<std::string> tool_names;   // functions that the model may call
  v1::GenerateRequest options;        // all but the prompt
  std::string constraint_field;       // that asks for the options' constraint
  bool stream = false;
  bool include_usage = false;     // in a last event of the stream
  bool continuous_usage = false;  // and, as far as it goes, in all others
  bool echo = false;              // the prompt before each output
  bool echoes_alone = false;      // with no output: the one token that is computed is not told
  Reasoning reasoning = Reasoning::kApart;

  // Outputs of each prompt; the server refuses what is out of range.
  int num_outputs() const {
    return options.sampling().has_num_outputs() ? options.sampling().num_outputs() : 1;
  }
  bool wants_logprobs() const { return options.output().has_logprobs(); }
};

// The body of POST /v1/completions. INVALID_ARGUMENT naming the field.
absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view body);
// The body of POST /v1/chat/completions.
absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view body);

// The body of POST /tokenize, as vLLM has it: one prompt, a text, or a chat.
absl::StatusOr<OpenAiRequest> ParseTokenizeRequest(absl::string_view body);
// The body of POST /detokenize: one prompt, of token ids.
absl::StatusOr<OpenAiRequest> ParseDetokenizeRequest(absl::string_view body);

}  // namespace lockstep
