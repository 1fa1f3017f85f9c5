#include "runtime/controller/request_validation.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/tool_calls.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

template <typename T>
absl::Status OutOfRange(absl::string_view field, T value, int64_t low, int64_t high) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", value, " is outside [", low, ", ", high, "]"));
}

template <typename T>
absl::Status CheckRange(absl::string_view field, T value, int64_t low, int64_t high) {
  if (value < low || value > high) return OutOfRange(field, value, low, high);
  return absl::OkStatus();
}

// 128 random bits: no client's own id collides with it.
std::string DrawRequestId() {
  absl::BitGen random;
  return absl::StrFormat("%016x%016x", absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint64_t>(random));
}

void ReadSampling(const v1::SamplingOptions& options, SamplingParams& params) {
  if (options.has_temperature()) params.temperature = options.temperature();
  if (options.has_top_k()) params.top_k = options.top_k();
  if (options.has_top_p()) params.top_p = options.top_p();
  if (options.has_min_p()) params.min_p = options.min_p();
  if (options.has_repetition_penalty()) params.repetition_penalty = options.repetition_penalty();
  if (options.has_presence_penalty()) params.presence_penalty = options.presence_penalty();
  if (options.has_frequency_penalty()) params.frequency_penalty = options.frequency_penalty();
  params.logit_bias.assign(options.logit_bias().begin(), options.logit_bias().end());
  std::sort(params.logit_bias.begin(), params.logit_bias.end());  // the map's order is random
  if (options.has_seed()) {
    params.seed = options.seed();
  } else {
    absl::BitGen random;
    params.seed = absl::Uniform<uint64_t>(random);
  }
}

absl::Status ReadStop(const v1::StopOptions& stop, CheckedRequest& checked) {
  SamplingParams& params = checked.engine.sampling;
  TextOptions& text = checked.stream.text;
  if (stop.has_max_tokens()) {
    RETURN_IF_ERROR(CheckRange("stop.max_tokens", stop.max_tokens(), 1, INT32_MAX));
    checked.max_tokens = stop.max_tokens();
  }
  RETURN_IF_ERROR(
      CheckRange("stop.min_tokens", stop.min_tokens(), 0, checked.max_tokens.value_or(INT32_MAX)));
  params.min_tokens = stop.min_tokens();
  text.min_tokens = stop.min_tokens();
  params.stop_token_ids.assign(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
  params.ignore_eos = stop.ignore_eos();
  text.include_stop_string = stop.include_stop_string();
  if (stop.stop_strings_size() > RequestLimits::kMaxStopStrings) {
    return absl::InvalidArgumentError(absl::StrCat("stop.stop_strings has ",
                                                   stop.stop_strings_size(), " entries, at most ",
                                                   RequestLimits::kMaxStopStrings));
  }
  for (int i = 0; i < stop.stop_strings_size(); ++i) {
    const std::string& string = stop.stop_strings(i);
    if (string.empty() || string.size() > RequestLimits::kMaxStopStringBytes) {
      return absl::InvalidArgumentError(absl::StrCat("stop.stop_strings[", i, "] has ",
                                                     string.size(), " bytes; allowed are 1 to ",
                                                     RequestLimits::kMaxStopStringBytes));
    }
    text.stop_strings.push_back(string);
  }
  return absl::OkStatus();
}

absl::Status ReadOutput(const v1::OutputOptions& output, CheckedRequest& checked) {
  SamplingParams& params = checked.engine.sampling;
  checked.stream.text.include_special_tokens = output.include_special_tokens();
  if (output.has_logprobs()) {
    RETURN_IF_ERROR(
        CheckRange("output.logprobs", output.logprobs(), 0, SamplingParams::kMaxLogprobs));
    params.num_logprobs = output.logprobs();
    checked.stream.logprobs = true;
  }
  if (output.has_prompt_logprobs()) {
    RETURN_IF_ERROR(CheckRange("output.prompt_logprobs", output.prompt_logprobs(), 0,
                               SamplingParams::kMaxLogprobs));
    params.num_prompt_logprobs = output.prompt_logprobs();
  }
  return absl::OkStatus();
}

absl::StatusOr<OutputConstraint> ReadChoices(const v1::TextChoices& choices) {
  constexpr int kMostTexts = OutputConstraint::kMaxTextBytes / 3;  // quotes and a comma are theirs
  if (choices.texts_size() > kMostTexts) {
    return absl::InvalidArgumentError(absl::StrCat("constraint.choices have ", choices.texts_size(),
                                                   " texts, at most ", kMostTexts));
  }
  size_t num_bytes = 0;
  for (const std::string& text : choices.texts()) num_bytes += text.size();
  if (num_bytes > OutputConstraint::kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("constraint.choices have ", num_bytes,
                                                   " bytes, at most ",
                                                   OutputConstraint::kMaxTextBytes));
  }
  const nlohmann::json texts(
      std::vector<std::string>(choices.texts().begin(), choices.texts().end()));
  return OutputConstraint{OutputConstraint::Kind::kChoices,
                          texts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

absl::StatusOr<OutputConstraint> ReadToolCalls(const v1::ToolCalls& calls) {
  if (!v1::ToolCalls::Form_IsValid(calls.form())) {
    return absl::InvalidArgumentError(
        absl::StrCat("constraint.tool_calls.form is ", static_cast<int>(calls.form()), ", must be ",
                     v1::ToolCalls::Form_MIN, " to ", v1::ToolCalls::Form_MAX));
  }
  const auto num_functions = static_cast<size_t>(calls.functions_size());
  if (const absl::Status status = grammar::CheckNumFunctions(num_functions); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("constraint.tool_calls: ", status.message()));
  }
  grammar::ToolCalls read;
  read.form = static_cast<grammar::ToolCalls::Form>(calls.form());
  read.required = calls.required();
  if (calls.has_answer()) read.answer = calls.answer();
  size_t num_bytes = calls.answer().size();
  for (const v1::ToolCalls::Function& function : calls.functions()) {
    read.functions.push_back({function.name(), function.parameters()});
    num_bytes += function.name().size() + function.parameters().size();
  }
  if (num_bytes > OutputConstraint::kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("constraint.tool_calls have ", num_bytes,
                                                   " bytes, at most ",
                                                   OutputConstraint::kMaxTextBytes));
  }
  return OutputConstraint{OutputConstraint::Kind::kToolCalls, grammar::TextOf(read)};
}

absl::StatusOr<OutputConstraint> ReadKind(const v1::OutputConstraint& constraint) {
  switch (constraint.kind_case()) {
    case v1::OutputConstraint::kJsonSchema:
      return OutputConstraint{OutputConstraint::Kind::kJsonSchema, constraint.json_schema()};
    case v1::OutputConstraint::kRegex:
      return OutputConstraint{OutputConstraint::Kind::kRegex, constraint.regex()};
    case v1::OutputConstraint::kChoices:
      return ReadChoices(constraint.choices());
    case v1::OutputConstraint::kToolCalls:
      return ReadToolCalls(constraint.tool_calls());
    case v1::OutputConstraint::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "constraint is empty: set json_schema, regex, choices or tool_calls");
}

absl::StatusOr<OutputConstraint> ReadConstraint(const v1::OutputConstraint& constraint) {
  ASSIGN_OR_RETURN(OutputConstraint read, ReadKind(constraint));
  if (!v1::Thought_IsValid(constraint.thought())) {
    return absl::InvalidArgumentError(
        absl::StrCat("constraint.thought is ", static_cast<int>(constraint.thought()), ", must be ",
                     v1::Thought_MIN, " to ", v1::Thought_MAX));
  }
  read.thought = static_cast<OutputConstraint::Thought>(constraint.thought());
  return read;
}

}  // namespace

absl::Status CheckRequestId(absl::string_view id) {
  if (id.size() > RequestLimits::kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(absl::StrCat("request_id has ", id.size(), " bytes, at most ",
                                                   RequestLimits::kMaxRequestIdBytes));
  }
  for (size_t i = 0; i < id.size(); ++i) {
    if (id[i] < 0x20 || id[i] > 0x7e) {
      return absl::InvalidArgumentError(
          absl::StrCat("request_id: byte ", i, " is not printable ASCII"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> DefaultSampling(const GenerationDefaults& defaults,
                                               int64_t vocab_size) {
  SamplingParams params;
  if (defaults.temperature) params.temperature = *defaults.temperature;
  if (defaults.do_sample && !*defaults.do_sample) params.temperature = 0.0f;
  if (defaults.top_k) params.top_k = *defaults.top_k;
  if (defaults.top_p) params.top_p = *defaults.top_p;
  if (defaults.min_p) params.min_p = *defaults.min_p;
  if (defaults.repetition_penalty) params.repetition_penalty = *defaults.repetition_penalty;
  const absl::Status valid = ValidateSamplingParams(params, vocab_size);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("generation_config.json: ", valid.message()));
  }
  return params;
}

absl::StatusOr<CheckedRequest> CheckRequest(const v1::GenerateRequest& request,
                                            const SamplingParams& defaults,
                                            const RequestLimits& limits) {
  CheckedRequest checked;
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  if (request.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return absl::InvalidArgumentError("prompt is missing: set text or token_ids");
  }
  if (request.cache_salt().size() > RequestLimits::kMaxCacheSaltBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has ", request.cache_salt().size(),
                                                   " bytes, at most ",
                                                   RequestLimits::kMaxCacheSaltBytes));
  }
  RETURN_IF_ERROR(CheckRange("priority", request.priority(), -RequestLimits::kMaxPriority,
                             RequestLimits::kMaxPriority));
  const v1::SamplingOptions& sampling = request.sampling();
  const int num_outputs = sampling.has_num_outputs() ? sampling.num_outputs() : 1;
  RETURN_IF_ERROR(CheckRange("sampling.num_outputs", num_outputs, 1, limits.max_num_outputs));

  checked.engine.sampling = defaults;
  ReadSampling(sampling, checked.engine.sampling);
  RETURN_IF_ERROR(ReadStop(request.stop(), checked));
  RETURN_IF_ERROR(ReadOutput(request.output(), checked));
  if (request.has_constraint()) {
    ASSIGN_OR_RETURN(checked.engine.sampling.constraint, ReadConstraint(request.constraint()));
  }
  SamplingParams probe = checked.engine.sampling;
  probe.max_tokens = checked.max_tokens.value_or(INT32_MAX);
  RETURN_IF_ERROR(ValidateSamplingParams(probe, limits.vocab_size));

  checked.engine.cache_salt = request.cache_salt();
  checked.engine.priority = request.priority();
  checked.engine.num_outputs = num_outputs;
  checked.stream.request_id = request.request_id().empty() ? DrawRequestId() : request.request_id();
  checked.stream.num_outputs = num_outputs;
  checked.stream.seed = checked.engine.sampling.seed;
  return checked;
}

absl::Status SetPrompt(std::vector<int32_t> prompt, const RequestLimits& limits,
                       CheckedRequest& request) {
  const int64_t num_tokens = static_cast<int64_t>(prompt.size());
  if (num_tokens == 0) return absl::InvalidArgumentError("prompt is empty: it has no tokens");
  if (num_tokens >= limits.max_model_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt has ", num_tokens, " tokens, but the ", kContextLengthWords, " is ",
                     limits.max_model_len, " tokens (max_model_len), one of them of the output"));
  }
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (prompt[i] < 0 || prompt[i] >= limits.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt.token_ids[", i, "] ", prompt[i], " is outside [0, ", limits.vocab_size - 1, "]"));
    }
  }
  const int64_t room = std::min<int64_t>(limits.max_model_len - num_tokens, INT32_MAX);
  SamplingParams& params = request.engine.sampling;
  params.max_tokens =
      static_cast<int32_t>(std::min<int64_t>(room, request.max_tokens.value_or(INT32_MAX)));
  if (params.min_tokens > params.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop.min_tokens ", params.min_tokens, ": max_model_len ",
                     limits.max_model_len, " leaves ", room, " after a prompt of ", num_tokens));
  }
  request.stream.max_tokens = params.max_tokens;
  request.stream.num_prompt_tokens = static_cast<int32_t>(num_tokens);
  if (params.num_prompt_logprobs >= 0) request.stream.prompt = prompt;
  request.engine.prompt = std::move(prompt);
  return absl::OkStatus();
}

absl::Status SetReceived(const v1::AttachRequest& attach, CheckedRequest& request) {
  StreamSpec& stream = request.stream;
  if (attach.received_size() > stream.num_outputs) {
    return absl::InvalidArgumentError(absl::StrCat("received has ", attach.received_size(),
                                                   " entries, the request has ", stream.num_outputs,
                                                   " outputs"));
  }
  stream.attaches = true;
  stream.received.resize(stream.num_outputs);
  request.engine.emitted.resize(stream.num_outputs);
  for (int i = 0; i < attach.received_size(); ++i) {
    const v1::ReceivedOutput& received = attach.received(i);
    if (received.num_text_bytes() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("received[", i, "].num_text_bytes is ",
                                                     received.num_text_bytes(),
                                                     ", at least 0 is needed"));
    }
    const auto& ids = received.token_ids();
    if (ids.empty() && received.num_text_bytes() > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "received[", i, "] has ", received.num_text_bytes(), " bytes of text, but no token_ids"));
    }
    stream.received[i] = {{ids.begin(), ids.end()}, received.num_text_bytes()};
    request.engine.emitted[i] = stream.received[i].token_ids;
  }
  return absl::OkStatus();
}

absl::Status CheckReceived(const RequestLimits& limits, const CheckedRequest& request) {
  for (size_t i = 0; i < request.engine.emitted.size(); ++i) {
    const std::vector<int32_t>& ids = request.engine.emitted[i];
    if (static_cast<int64_t>(ids.size()) > request.engine.sampling.max_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("received[", i, "] has ", ids.size(),
                                                     " token_ids, max_tokens is ",
                                                     request.engine.sampling.max_tokens));
    }
    for (const int32_t id : ids) {
      if (id >= 0 && id < limits.vocab_size) continue;
      return absl::InvalidArgumentError(absl::StrCat("received[", i, "] has token id ", id,
                                                     ", outside [0, ", limits.vocab_size - 1, "]"));
    }
  }
  return absl::OkStatus();
}

v1::GenerateRequest ResolvedRequest(const v1::GenerateRequest& request,
                                    const CheckedRequest& checked) {
  v1::GenerateRequest resolved = request;
  resolved.set_request_id(checked.stream.request_id);
  resolved.clear_prediction();
  const std::vector<int32_t>& prompt = checked.engine.prompt;
  resolved.mutable_token_ids()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  const SamplingParams& params = checked.engine.sampling;
  v1::SamplingOptions& sampling = *resolved.mutable_sampling();
  sampling.set_temperature(params.temperature);
  sampling.set_top_k(params.top_k);
  sampling.set_top_p(params.top_p);
  sampling.set_min_p(params.min_p);
  sampling.set_repetition_penalty(params.repetition_penalty);
  sampling.set_presence_penalty(params.presence_penalty);
  sampling.set_frequency_penalty(params.frequency_penalty);
  sampling.set_seed(params.seed);
  resolved.mutable_stop()->set_max_tokens(params.max_tokens);
  return resolved;
}

}  // namespace lockstep
