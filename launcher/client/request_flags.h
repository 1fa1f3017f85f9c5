// The sampling, stop and output flags of a generation, as a request. Only what the user gave is
// set: everything else is left to the server's defaults (the checkpoint's generation_config.json).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/command.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

struct RequestFlags {
  std::string request_id;
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_bias;  // "TOKEN_ID:BIAS"
  std::optional<uint64_t> seed;
  std::optional<int> num_outputs;

  std::optional<int> max_tokens;
  std::optional<int> min_tokens;
  std::vector<std::string> stop_strings;
  std::string stop_token_ids;  // "1,2"
  bool ignore_eos = false;
  bool include_stop_string = false;

  std::string json_schema;  // a file, or the schema itself
  std::string regex;
  std::vector<std::string> choices;
  std::string prediction;  // a file

  std::optional<int> logprobs;
  std::optional<int> prompt_logprobs;
  bool include_special_tokens = false;
  bool parse_special_tokens = false;
  bool no_bos = false;
  std::string cache_salt;
  std::optional<int> priority;
};

void AddSamplingFlags(CLI::App& command, RequestFlags& flags);
void AddStopFlags(CLI::App& command, RequestFlags& flags);
void AddConstraintFlags(CLI::App& command, RequestFlags& flags);
void AddOutputFlags(CLI::App& command, RequestFlags& flags);

// The request without its prompt. Usage errors for a malformed --logit-bias or --stop-token-ids;
// for the schema's file as ReadWhole (kernels/base/text_file.h), or INVALID_ARGUMENT: it is not
// UTF-8. Ranges, and what a schema or a pattern says, are the server's to check.
absl::StatusOr<v1::GenerateRequest> MakeRequest(const RequestFlags& flags);

// A message of the server's about a field of the request, with the name of the flag that set it:
// "--n 65 is outside [1, 64]". Others as they are.
std::string WithFlagNames(absl::string_view message);

}  // namespace lockstep
