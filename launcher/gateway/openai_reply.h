// What OpenAI's HTTP API answers: outputs of ours as its JSON, whole or as events of a stream.
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/client/response.h"
#include "launcher/gateway/assistant_text.h"
#include "launcher/gateway/openai_request.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of the prompt, for completions that repeat it.
struct EchoedPrompt {
  std::string text;
  std::string first_token;  // which has no log-probability
};

class OpenAiReply {
 public:
  using Json = nlohmann::ordered_json;

  // echoed: one to each prompt with request.echo, else empty. form: of a chat's outputs. The
  // request must outlive it.
  OpenAiReply(const OpenAiRequest& request, size_t num_prompts, std::string model,
              absl::Time created, std::vector<EchoedPrompt> echoed, AssistantForm form = {});

  // To be called with all events of each prompt in order.
  void Add(size_t prompt, const v1::GenerateEvent& event);
  // What a stream says of an event that was added, each a "data: ..." of its own.
  std::vector<Json> Chunks(size_t prompt, const v1::GenerateEvent& event);
  // What asks the server for the rest of a prompt's outputs, if it keeps them.
  v1::AttachRequest Continuation(size_t prompt) const { return responses_[prompt].Continuation(); }
  bool is_attachable(size_t prompt) const { return responses_[prompt].accepted().attachable(); }
  // Nothing more comes of it, whatever became of its call.
  bool is_complete(size_t prompt) const { return responses_[prompt].complete(); }
  bool all_accepted() const;
  // The stream's last event, for include_usage.
  Json UsageChunk() const;
  // All of it, once every prompt has ended, as JSON. Long answers are never values, which take ten
  // times as much memory.
  std::string WholeText() const;
  // What a log tells of it, however it ended.
  Json LogFields() const;

 private:
  AssistantText NewText() const;
  bool TellsReasoning(const AssistantText::Piece& piece) const;
  const std::string& TextOf(size_t prompt, size_t output) const;
  Json Envelope(const char* object) const;
  Json ChunkOf(Json choice) const;
  std::string ChoiceText(size_t prompt, size_t output) const;
  std::optional<Json> OpeningChunk(size_t prompt, size_t output);
  Json TextChunk(size_t index, const char* field, const std::string& text) const;
  std::vector<Json> PieceChunks(size_t index, const AssistantText::Piece& piece) const;
  std::vector<Json> DeltaChunks(size_t prompt, const v1::TokenDelta& delta);
  v1::OutputFinished EndOf(const v1::OutputFinished& finished) const;
  std::vector<Json> EndChunks(size_t prompt, const v1::OutputFinished& finished);
  Json ToolCallsJson(size_t index, const std::vector<ToolCall>& calls, bool is_chunk) const;
  const std::vector<v1::Logprobs>& LogprobsTold(size_t prompt, size_t output) const;
  std::string LogprobsText(size_t prompt, size_t output) const;
  Json LogprobsOf(size_t prompt, size_t output, bool are_first, size_t& offset) const;
  Json Usage() const;
  Json UsageSoFar() const;
  size_t IndexOf(size_t prompt, size_t output) const {
    return prompt * static_cast<size_t>(num_outputs_) + output;
  }

  // How much of an output its stream has told.
  struct Told {
    AssistantText text;
    bool opened = false;
    bool ended = false;
    bool has_logprobs = false;
    size_t offset = 0;  // characters
  };

  const OpenAiRequest& request_;
  const AssistantForm form_;
  const int num_outputs_;
  const std::string model_;
  const int64_t created_;
  const std::vector<EchoedPrompt> echoed_;
  std::vector<Response> responses_;  // by prompt
  std::vector<Told> told_;           // by index
};

}  // namespace lockstep
