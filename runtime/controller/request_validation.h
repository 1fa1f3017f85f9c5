// From a client's GenerateRequest to an engine request: defaults, limits, one-line errors. Pure;
// called from gRPC's threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "model/model_config.h"
#include "model/sampling/sampling_params.h"
#include "runtime/controller/request_stream.h"
#include "runtime/engine/engine.h"

namespace lockstep {

// Of a prompt that is too long, as OpenAI's clients look for it.
inline constexpr char kContextLengthWords[] = "maximum context length";

struct RequestLimits {
  int64_t vocab_size = 0;     // the model's
  int64_t max_model_len = 0;  // prompt + output tokens
  int max_num_outputs = 64;

  static constexpr int kMaxRequestIdBytes = 128;
  static constexpr int kMaxCacheSaltBytes = 128;
  static constexpr int kMaxPriority = 1000;
  static constexpr int kMaxStopStrings = 16;
  static constexpr int kMaxStopStringBytes = 256;
};

// The checkpoint's sampling defaults as parameters. generation_config.json's temperature, top_k,
// top_p, min_p and repetition_penalty are used; do_sample false means greedy. INVALID_ARGUMENT when
// they are out of range.
absl::StatusOr<SamplingParams> DefaultSampling(const GenerationDefaults& defaults,
                                               int64_t vocab_size);

// A request that lacks only its prompt's tokens.
struct CheckedRequest {
  engine::EngineRequest engine;  // without prompt and max_tokens
  StreamSpec stream;
  std::optional<int32_t> max_tokens;  // as asked
};

// INVALID_ARGUMENT when it is too long or not printable ASCII; empty is right.
absl::Status CheckRequestId(absl::string_view id);

// Everything but the prompt. INVALID_ARGUMENT naming the field, its value and the limit.
absl::StatusOr<CheckedRequest> CheckRequest(const v1::GenerateRequest& request,
                                            const SamplingParams& defaults,
                                            const RequestLimits& limits);

// Puts the prompt in. INVALID_ARGUMENT: empty, an unknown token id, no room for an output token.
absl::Status SetPrompt(std::vector<int32_t> prompt, const RequestLimits& limits,
                       CheckedRequest& request);

// Has the request go on after what its client has. INVALID_ARGUMENT naming a number.
absl::Status SetReceived(const v1::AttachRequest& attach, CheckedRequest& request);
// Of a request with its prompt: tokens that it could not have, named. The stream that it may have
// goes on.
absl::Status CheckReceived(const RequestLimits& limits, const CheckedRequest& request);

// The same request with its prompt as tokens and every default and random choice made: checked
// again, under whatever defaults, it means the same; without a prediction. Of a request that has
// its prompt.
v1::GenerateRequest ResolvedRequest(const v1::GenerateRequest& request,
                                    const CheckedRequest& checked);

}  // namespace lockstep
