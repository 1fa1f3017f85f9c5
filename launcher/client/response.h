// What one request has received so far: a stream of events folded into outputs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// Of one request. A server that sends a wild index or number must not make the client allocate
// without limit.
inline constexpr int kMaxOutputs = 4096;

struct ResponseOutput {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<v1::Logprobs> logprobs;
  std::optional<v1::OutputFinished> finished;
};

// Not thread-safe.
class Response {
 public:
  explicit Response(absl::Time started) : started_(started) {}
  void Add(const v1::GenerateEvent& event, absl::Time received);
  // Of an output's tokens so far, which the caller has told.
  void ForgetLogprobs(uint32_t output_index) { OutputAt(output_index).logprobs.clear(); }

  // Everything has come, whatever became of the call.
  bool complete() const;
  // What asks the server for the rest of it.
  v1::AttachRequest Continuation() const;

  const v1::PromptAccepted& accepted() const { return accepted_; }
  const std::vector<v1::Logprobs>& prompt_logprobs() const { return prompt_logprobs_; }
  const std::vector<ResponseOutput>& outputs() const { return outputs_; }
  int64_t num_output_tokens() const { return num_output_tokens_; }
  absl::Time started() const { return started_; }
  // Of the first and the last token; InfinitePast before any.
  absl::Time first_token() const { return first_token_; }
  absl::Time last_token() const { return last_token_; }

  // One object: outputs with text, ids, logprobs and finish reason; usage; timing in milliseconds.
  nlohmann::ordered_json ToJson() const;

 private:
  void AddDelta(const v1::TokenDelta& delta, absl::Time received);
  ResponseOutput& OutputAt(uint32_t index);

  absl::Time started_;
  absl::Time first_token_ = absl::InfinitePast();
  absl::Time last_token_ = absl::InfinitePast();
  int64_t num_output_tokens_ = 0;
  v1::PromptAccepted accepted_;
  std::vector<v1::Logprobs> prompt_logprobs_;
  std::vector<ResponseOutput> outputs_;
};

// "stop", "length", "aborted", "deadline".
std::string FinishReasonName(v1::FinishReason reason);

}  // namespace lockstep
