#include "launcher/gateway/openai_request.h"

#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/gateway/constraint_fields.h"
#include "launcher/gateway/conversation.h"
#include "launcher/gateway/request_fields.h"
#include "model/json/strict_json.h"
#include "model/json_integer.h"
#include "model/sampling/sampling_params.h"
#include "runtime/controller/request_validation.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr int kMaxBodyDepth = 64;             // schemas of tools nest
constexpr int kDefaultCompletionTokens = 16;  // OpenAI's, of completions that do not say
constexpr char kTemplateWritesThem[] = "must be false: the chat template writes them";

absl::StatusOr<json> ParseBody(absl::string_view body) {
  auto parsed = ParseStrictJson({body.data(), body.size()}, kMaxBodyDepth);
  if (parsed.ok()) return parsed;
  return absl::InvalidArgumentError(
      absl::StrCat("the body is not JSON: ", parsed.status().message()));
}

std::optional<int32_t> TokenIdOf(const json& value) {
  const auto id = IntegerIn(value, 0, std::numeric_limits<int32_t>::max());
  return id ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
}

void ReadSampling(RequestFields& fields, v1::SamplingOptions& sampling) {
  if (const auto value = fields.Number("temperature")) {
    // As vLLM has it: almost greedy.
    const bool is_low = *value > 0 && *value < SamplingParams::kMinTemperature;
    sampling.set_temperature(is_low ? SamplingParams::kMinTemperature : *value);
  }
  if (const auto value = fields.Number("top_p")) sampling.set_top_p(*value);
  if (const auto value = fields.Int32("top_k")) sampling.set_top_k(*value < 0 ? 0 : *value);
  if (sampling.has_top_p() && sampling.top_p() == 0) {  // the most likely one alone
    sampling.clear_top_p();
    sampling.set_top_k(1);
  }
  if (const auto value = fields.Number("min_p")) sampling.set_min_p(*value);
  if (const auto value = fields.Number("repetition_penalty")) {
    sampling.set_repetition_penalty(*value);
  }
  if (const auto value = fields.Number("presence_penalty")) sampling.set_presence_penalty(*value);
  if (const auto value = fields.Number("frequency_penalty")) sampling.set_frequency_penalty(*value);
  if (const auto value = fields.Seed("seed")) sampling.set_seed(*value);
  if (const auto value = fields.Int32("n")) sampling.set_num_outputs(*value);
}

// There is a copy of these for each prompt, before the server looks at any.
bool IsTooMany(RequestFields& fields, const char* name, size_t count, int most) {
  if (count <= static_cast<size_t>(most)) return false;
  fields.Fail(name, absl::StrCat("has ", count, " entries, at most ", most));
  return true;
}

// {"TOKEN_ID": bias}
void ReadLogitBias(RequestFields& fields, v1::SamplingOptions& sampling) {
  const json* biases = fields.Value("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object()) {
    fields.Fail("logit_bias", "must be an object of token ids and biases");
    return;
  }
  if (IsTooMany(fields, "logit_bias", biases->size(), SamplingParams::kMaxLogitBias)) return;
  for (const auto& [name, value] : biases->items()) {
    int32_t token = 0;
    if (!absl::SimpleAtoi(name, &token) || !value.is_number()) {
      fields.Fail("logit_bias", absl::StrCat("takes token ids and numbers, not ", Quoted(name),
                                             ": ", QuotedJson(value)));
      return;
    }
    (*sampling.mutable_logit_bias())[token] = value.get<float>();
  }
}

void ReadStop(RequestFields& fields, v1::StopOptions& stop) {
  if (const json* value = fields.Value("stop"); value != nullptr && value->is_string()) {
    stop.add_stop_strings(value->get<std::string>());
  } else if (value != nullptr) {
    if (IsTooMany(fields, "stop", value->size(), RequestLimits::kMaxStopStrings)) return;
    for (const json& entry : value->is_array() ? *value : json::array({json()})) {
      if (!entry.is_string()) {
        fields.Fail("stop", "must be a string or an array of strings");
        return;
      }
      stop.add_stop_strings(entry.get<std::string>());
    }
  }
  if (const json* ids = fields.Value("stop_token_ids"); ids != nullptr) {
    if (IsTooMany(fields, "stop_token_ids", ids->size(), SamplingParams::kMaxStopTokenIds)) return;
    for (const json& id : ids->is_array() ? *ids : json::array({json()})) {
      const std::optional<int32_t> token = TokenIdOf(id);
      if (!token) {
        fields.Fail("stop_token_ids", "must be an array of token ids");
        return;
      }
      stop.add_stop_token_ids(*token);
    }
  }
  if (const auto value = fields.Int32("min_tokens")) stop.set_min_tokens(*value);
  if (const auto value = fields.Bool("ignore_eos")) stop.set_ignore_eos(*value);
  if (const auto value = fields.Bool("include_stop_str_in_output")) {
    stop.set_include_stop_string(*value);
  }
}

void ReadStream(RequestFields& fields, OpenAiRequest& request) {
  request.stream = fields.Bool("stream").value_or(false);
  const json* options = fields.Value("stream_options");
  if (options == nullptr) return;
  if (!request.stream) {
    fields.Fail("stream_options", "is for \"stream\": true");
    return;
  }
  RequestFields inner(*options, "stream_options.");
  request.include_usage = inner.Bool("include_usage").value_or(false);
  request.continuous_usage =
      inner.Bool("continuous_usage_stats").value_or(false) && request.include_usage;
  inner.Ignore("include_obfuscation");
  if (const absl::Status status = inner.Finish(); !status.ok()) {
    fields.Fail("stream_options", absl::StrCat("is wrong: ", status.message()));
  }
}

// What both endpoints have.
void ReadCommon(RequestFields& fields, OpenAiRequest& request) {
  request.model = fields.Text("model").value_or("");
  v1::GenerateRequest& options = request.options;
  ReadSampling(fields, *options.mutable_sampling());
  ReadLogitBias(fields, *options.mutable_sampling());
  ReadStop(fields, *options.mutable_stop());
  ReadStream(fields, request);
  if (const auto skips = fields.Bool("skip_special_tokens")) {
    options.mutable_output()->set_include_special_tokens(!*skips);
  }
  if (auto salt = fields.Text("cache_salt")) options.set_cache_salt(*std::move(salt));
  if (const auto priority = fields.Int32("priority")) options.set_priority(*priority);
  if (auto id = fields.Text("request_id")) options.set_request_id(*std::move(id));
  for (const char* name :
       {"user", "metadata", "store", "service_tier", "safety_identifier", "session_id",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "verbosity",
        "spaces_between_special_tokens"}) {  // there are none
    fields.Ignore(name);
  }
  fields.Refuse("use_beam_search", false, "must be false: outputs are sampled");
  fields.Refuse("length_penalty", 1.0, "must be 1: it is for beams");
  fields.Refuse("return_tokens_as_token_ids", false, "must be false: answers are text");
  fields.Refuse("detokenize", true, "must be true: answers are text");
  fields.Refuse("return_token_ids", false, "must be false: answers are text");
  fields.Refuse("bad_words", json::array(), "cannot be given: say logit_bias, or a constraint");
  fields.Refuse("allowed_token_ids", json::array(), "cannot be given: say a constraint");
}

// A number of tokens that is given under two names.
void ReadMaxTokens(RequestFields& fields, const char* name, v1::StopOptions& stop) {
  const auto value = fields.Int32(name);
  if (!value) return;
  if (stop.has_max_tokens() && stop.max_tokens() != *value) {
    fields.Fail(name, absl::StrCat("is ", *value, ", but max_tokens ", stop.max_tokens()));
  }
  stop.set_max_tokens(*value);
}

bool AreTokenIds(const json& value) {
  return value.is_array() && !value.empty() &&
         std::all_of(value.begin(), value.end(),
                     [](const json& id) { return TokenIdOf(id).has_value(); });
}

std::optional<OpenAiPrompt> PromptOf(const json& value) {
  if (value.is_string()) return OpenAiPrompt{value.get<std::string>(), {}};
  if (AreTokenIds(value)) return OpenAiPrompt{"", value.get<std::vector<int32_t>>()};
  return std::nullopt;
}

// A text, token ids, or an array of either.
void ReadPrompts(RequestFields& fields, OpenAiRequest& request) {
  const json* value = fields.Value("prompt");
  if (value == nullptr) {
    fields.Fail("prompt", "is missing");
    return;
  }
  if (auto one = PromptOf(*value)) {
    request.prompts.push_back(*std::move(one));
    return;
  }
  if (!value->is_array() || value->empty()) {
    fields.Fail("prompt", "must be a string, an array of token ids, or an array of such");
    return;
  }
  if (value->size() > kMaxPrompts) {
    fields.Fail("prompt", absl::StrCat("has ", value->size(), " prompts: at most ", kMaxPrompts));
    return;
  }
  for (const json& entry : *value) {
    auto prompt = PromptOf(entry);
    if (!prompt) {
      fields.Fail("prompt", absl::StrCat("holds ", QuotedJson(entry),
                                         ", which is neither a string nor an array of token ids"));
      return;
    }
    request.prompts.push_back(*std::move(prompt));
  }
}

// SGLang's separate_reasoning, and vLLM's include_reasoning.
void ReadReasoning(RequestFields& fields, OpenAiRequest& request) {
  using Reasoning = OpenAiRequest::Reasoning;
  if (!fields.Bool("include_reasoning").value_or(true)) request.reasoning = Reasoning::kLeftOut;
  if (request.reasoning == Reasoning::kLeftOut && request.wants_logprobs()) {
    fields.Fail("include_reasoning", "must be true where logprobs are wanted, which tell it");
  }
  if (fields.Bool("separate_reasoning").value_or(true)) return;
  if (request.reasoning == Reasoning::kLeftOut) {
    fields.Fail("include_reasoning", "must be true where separate_reasoning is false");
  }
  request.reasoning = Reasoning::kInContent;
}

void ReadChatLogprobs(RequestFields& fields, v1::OutputOptions& output) {
  const bool wanted = fields.Bool("logprobs").value_or(false);
  const auto num_top = fields.Integer("top_logprobs", 0, SamplingParams::kMaxLogprobs);
  if (num_top.value_or(0) > 0 && !wanted) fields.Fail("top_logprobs", "is for \"logprobs\": true");
  if (wanted) output.set_logprobs(static_cast<int32_t>(num_top.value_or(0)));
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseCompletionRequest(absl::string_view body) {
  ASSIGN_OR_RETURN(const json parsed, ParseBody(body));
  RequestFields fields(parsed);
  OpenAiRequest request;
  ReadCommon(fields, request);
  RETURN_IF_ERROR(ReadConstraint(body, fields, request.options));
  ReadPrompts(fields, request);
  v1::GenerateRequest& options = request.options;
  options.mutable_stop()->set_max_tokens(
      fields.Int32("max_tokens").value_or(kDefaultCompletionTokens));
  if (const auto logprobs = fields.Integer("logprobs", 0, SamplingParams::kMaxLogprobs)) {
    options.mutable_output()->set_logprobs(static_cast<int32_t>(*logprobs));
  }
  request.echo = fields.Bool("echo").value_or(false);
  if (request.echo && options.stop().max_tokens() == 0) {
    request.echoes_alone = true;
    options.mutable_stop()->set_max_tokens(1);
  }
  if (request.echo && request.wants_logprobs()) {
    options.mutable_output()->set_prompt_logprobs(options.output().logprobs());
  }
  // Who writes a prompt by hand has put its special tokens there.
  options.set_parse_special_tokens(fields.Bool("parse_special_tokens").value_or(true));
  if (const auto adds = fields.Bool("add_special_tokens")) options.set_add_special_tokens(*adds);
  fields.Refuse("suffix", "", "cannot be given: text is not inserted");
  fields.Refuse("best_of", request.num_outputs(), "must be n: outputs are not chosen among more");
  RETURN_IF_ERROR(fields.Finish());
  request.constraint_field = ConstraintFieldOf(parsed, request.options.constraint());
  return request;
}

absl::StatusOr<OpenAiRequest> ParseChatRequest(absl::string_view body) {
  ASSIGN_OR_RETURN(const json parsed, ParseBody(body));
  RequestFields fields(parsed);
  OpenAiRequest request;
  request.is_chat = true;
  ReadCommon(fields, request);
  RETURN_IF_ERROR(ReadConstraint(body, fields, request.options));
  RETURN_IF_ERROR(ReadConversation(body, fields, request));
  ReadMaxTokens(fields, "max_tokens", *request.options.mutable_stop());
  ReadMaxTokens(fields, "max_completion_tokens", *request.options.mutable_stop());
  ReadChatLogprobs(fields, *request.options.mutable_output());
  ReadReasoning(fields, request);
  fields.Refuse("documents", json::array(), "cannot be given: say chat_template_kwargs");
  fields.Refuse("functions", json::array(), "cannot be given: say tools instead");
  fields.Refuse("function_call", "none", "must be none: say tool_choice instead");
  fields.Refuse("echo", false, "must be false: say continue_final_message");
  fields.Refuse("add_special_tokens", false, kTemplateWritesThem);
  fields.Refuse("modalities", json::array({"text"}), "must be [\"text\"]");
  RETURN_IF_ERROR(fields.Finish());
  request.constraint_field = ConstraintFieldOf(parsed, request.options.constraint());
  return request;
}

absl::StatusOr<OpenAiRequest> ParseTokenizeRequest(absl::string_view body) {
  ASSIGN_OR_RETURN(const json parsed, ParseBody(body));
  RequestFields fields(parsed);
  OpenAiRequest request;
  request.model = fields.Text("model").value_or("");
  request.is_chat = fields.Value("messages") != nullptr;
  fields.Refuse("return_token_strs", false, "must be false: ask /detokenize");
  if (request.is_chat) {
    RETURN_IF_ERROR(ReadConversation(body, fields, request));
    fields.Refuse("add_special_tokens", false, kTemplateWritesThem);
  } else if (auto prompt = fields.Text("prompt")) {
    request.prompts.push_back({*std::move(prompt), {}});
    request.options.set_add_special_tokens(fields.Bool("add_special_tokens").value_or(true));
    request.options.set_parse_special_tokens(fields.Bool("parse_special_tokens").value_or(true));
  } else {
    fields.Fail("prompt", "is missing, and so are messages");
  }
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<OpenAiRequest> ParseDetokenizeRequest(absl::string_view body) {
  ASSIGN_OR_RETURN(const json parsed, ParseBody(body));
  RequestFields fields(parsed);
  OpenAiRequest request;
  request.model = fields.Text("model").value_or("");
  const json* tokens = fields.Value("tokens");
  if (tokens != nullptr && (AreTokenIds(*tokens) || *tokens == json::array())) {
    request.prompts.push_back({"", tokens->get<std::vector<int32_t>>()});
  } else {
    fields.Fail("tokens", "must be an array of token ids");
  }
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

}  // namespace lockstep
