// What the engine takes.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "runtime/engine/engine.h"

namespace lockstep::engine {

int64_t Engine::MaxLength(const EngineRequest& request) const {
  const int64_t wanted =
      static_cast<int64_t>(request.prompt.size()) + int64_t{request.sampling.max_tokens};
  return std::min(wanted, config_.max_model_len);
}

absl::Status Engine::CheckAdd(const EngineRequest& request) const {
  RETURN_IF_ERROR(CheckRequest(request));
  return CheckQueue();
}

absl::Status Engine::CheckRequest(const EngineRequest& request) const {
  const int64_t num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (num_prompt_tokens == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (num_prompt_tokens >= config_.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of ", num_prompt_tokens, " tokens leaves no room to generate: ",
                     "prompt and output together are limited to ", config_.max_model_len));
  }
  RETURN_IF_ERROR(CheckTokens(request.prompt, "prompt"));
  const int64_t num_predicted = std::ssize(request.prediction);
  if (num_predicted > config_.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat("a prediction of ", num_predicted,
                                                   " tokens, the longest output has ",
                                                   config_.max_model_len));
  }
  RETURN_IF_ERROR(CheckTokens(request.prediction, "prediction"));
  if (request.num_outputs < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_outputs is ", request.num_outputs, ", at least 1 is needed"));
  }
  if (request.sampling.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.sampling.max_tokens, ", at least 1 is needed"));
  }
  // The last token of an output is never fed back, so it needs no room in the cache.
  const int64_t num_cached_tokens = MaxLength(request) - 1;
  if (scheduler_.BlocksFor(num_cached_tokens) > config_.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a prompt of ", num_prompt_tokens, " tokens and max_tokens ", request.sampling.max_tokens,
        " need ", scheduler_.BlocksFor(num_cached_tokens), " KV cache blocks of ",
        config_.block_size, " tokens, the whole cache has ", config_.num_blocks));
  }
  if (requests_.contains(request.request_id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("request id ", request.request_id, " is in use"));
  }
  for (const std::vector<int32_t>& tokens : request.emitted) {
    RETURN_IF_ERROR(CheckTokens(tokens, "emitted"));
  }
  return absl::OkStatus();
}

absl::Status Engine::CheckTokens(const std::vector<int32_t>& tokens,
                                 absl::string_view whose) const {
  for (const int32_t token : tokens) {
    if (config_.vocab_size == 0 || (token >= 0 && token < config_.vocab_size)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(whose, " token id ", token, " is outside [0, ", config_.vocab_size, ")"));
  }
  return absl::OkStatus();
}

absl::Status QueueIsFull(int64_t num_requests) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the queue is full: ", num_requests, " requests wait already, retry later"));
}

absl::Status Engine::CheckQueue() const {
  if (num_queued_requests_ < config_.max_queued_requests) return absl::OkStatus();
  return QueueIsFull(num_queued_requests_);
}

}  // namespace lockstep::engine
