#include "launcher/client/request_flags.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"
#include "launcher/client/response.h"
#include "model/grammar/output_constraint.h"

namespace lockstep {
namespace {

constexpr int64_t kMaxPredictionBytes = 3 << 20;  // a request may have 4 MiB

// What the protocol holds; the server knows the limits.
CLI::Validator Int32() {
  return Between(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
}

}  // namespace

void AddSamplingFlags(CLI::App& command, RequestFlags& flags) {
  const char* group = "Sampling (unset: the checkpoint's defaults)";
  const auto add = [&](const char* name, auto& value, const char* description, const char* type) {
    return command.add_option(name, value, description)->type_name(type)->group(group);
  };
  add("--temperature", flags.temperature, "0 = greedy, else 0.01 to 100", "T");
  add("--top-k", flags.top_k, "choose among the K most likely tokens; 0 = off", "K")
      ->check(Int32());
  add("--top-p", flags.top_p, "choose among the most likely tokens that hold mass P; 1 = off", "P");
  add("--min-p", flags.min_p, "drop tokens below P times the likeliest; 0 = off", "P");
  add("--seed", flags.seed,
      "equal seeds give equal outputs (of GPUs: with serve --deterministic; default: random)", "N")
      ->check(Unsigned64());
  add("--n", flags.num_outputs, "outputs per prompt, of which servers take 1 to 64 (default: 1)",
      "N")
      ->check(Between(1, kMaxOutputs));
  add("--repetition-penalty", flags.repetition_penalty, "over prompt and output; 1 = off", "X");
  add("--presence-penalty", flags.presence_penalty, "over the output, -2 to 2; 0 = off", "X");
  add("--frequency-penalty", flags.frequency_penalty, "over the output, -2 to 2; 0 = off", "X");
  AddTexts(command, "--logit-bias", flags.logit_bias,
           "add BIAS (-100 to 100) to a token's logit; may be repeated")
      ->type_name("ID:BIAS")
      ->group(group);
}

void AddStopFlags(CLI::App& command, RequestFlags& flags) {
  const char* group = "Length and stopping";
  command
      .add_option("--max-tokens", flags.max_tokens,
                  "most tokens to generate (default: as many as the context holds)")
      ->type_name("TOKENS")
      ->check(Int32())
      ->group(group);
  command.add_option("--min-tokens", flags.min_tokens, "no end before this many tokens")
      ->type_name("TOKENS")
      ->check(Int32())
      ->group(group);
  AddTexts(command, "--stop", flags.stop_strings, "end before this text; may be repeated")
      ->type_name("TEXT")
      ->group(group);
  command.add_option("--stop-token-ids", flags.stop_token_ids, "end at any of these tokens")
      ->type_name("IDS")
      ->group(group);
  command.add_flag("--ignore-eos", flags.ignore_eos, "go on after the end-of-text token")
      ->group(group);
  command.add_flag("--include-stop", flags.include_stop_string, "keep the matched stop text")
      ->group(group);
}

void AddConstraintFlags(CLI::App& command, RequestFlags& flags) {
  const char* group = "What the text must be";
  CLI::Option* json_schema = command
                                 .add_option("--json-schema", flags.json_schema,
                                             "JSON that is valid against this JSON Schema: a file, "
                                             "or the schema itself where it begins with {")
                                 ->type_name("FILE")
                                 ->group(group);
  CLI::Option* regex =
      command
          .add_option("--regex", flags.regex, "a match of this regular expression, from end to end")
          ->type_name("PATTERN")
          ->group(group);
  AddTexts(command, "--choice", flags.choices, "one of the texts given so; to be repeated")
      ->type_name("TEXT")
      ->group(group)
      ->excludes(json_schema)
      ->excludes(regex);
  regex->excludes(json_schema);
}

void AddOutputFlags(CLI::App& command, RequestFlags& flags) {
  const char* group = "What is returned";
  command
      .add_option("--logprobs", flags.logprobs,
                  "log-probabilities of tokens and of the N (0 to 20) likeliest; needs --json")
      ->type_name("N")
      ->check(Int32())
      ->group(group);
  command.add_option("--prompt-logprobs", flags.prompt_logprobs, "the same of the prompt's tokens")
      ->type_name("N")
      ->check(Int32())
      ->group(group);
  command
      .add_flag("--include-special-tokens", flags.include_special_tokens,
                "show special tokens in the text")
      ->group(group);
  command
      .add_flag("--parse-special-tokens", flags.parse_special_tokens,
                "read <|...|> in the prompt as special tokens, not as text")
      ->group("Prompt");
  command
      .add_flag("--no-bos", flags.no_bos,
                "put no BOS before a prompt of text: one out of a chat template mostly has its own")
      ->group("Prompt");
  command
      .add_option("--cache-salt", flags.cache_salt,
                  "share cached prefixes only with requests of this salt")
      ->type_name("TEXT")
      ->group("Prompt");
  command
      .add_option("--prediction", flags.prediction,
                  "a text that outputs will resemble, such as the one to be changed: the same "
                  "outputs, sooner (of servers with --speculative-tokens)")
      ->type_name("FILE")
      ->group("Prompt");
  command.add_option("--priority", flags.priority, "lower runs first, -1000 to 1000 (default: 0)")
      ->type_name("N")
      ->check(Int32())
      ->group("Prompt");
}

namespace {

absl::Status SetSampling(const RequestFlags& flags, v1::SamplingOptions& sampling) {
  if (flags.temperature) sampling.set_temperature(*flags.temperature);
  if (flags.top_k) sampling.set_top_k(*flags.top_k);
  if (flags.top_p) sampling.set_top_p(*flags.top_p);
  if (flags.min_p) sampling.set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling.set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling.set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling.set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling.set_seed(*flags.seed);
  if (flags.num_outputs) sampling.set_num_outputs(*flags.num_outputs);
  for (const std::string& item : flags.logit_bias) {
    ASSIGN_OR_RETURN(const auto bias, ParseLogitBias(item));
    (*sampling.mutable_logit_bias())[bias.first] = bias.second;
  }
  return absl::OkStatus();
}

absl::Status SetStop(const RequestFlags& flags, v1::StopOptions& stop) {
  if (flags.max_tokens) stop.set_max_tokens(*flags.max_tokens);
  if (flags.min_tokens) stop.set_min_tokens(*flags.min_tokens);
  for (const std::string& text : flags.stop_strings) stop.add_stop_strings(text);
  if (!flags.stop_token_ids.empty()) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseTokenIds(flags.stop_token_ids));
    stop.mutable_stop_token_ids()->Assign(ids.begin(), ids.end());
  }
  stop.set_ignore_eos(flags.ignore_eos);
  stop.set_include_stop_string(flags.include_stop_string);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadUtf8(const std::string& path, int64_t max_bytes) {
  ASSIGN_OR_RETURN(std::string text, ReadWhole(path, max_bytes));
  if (const auto offset = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not UTF-8 text: invalid byte at offset ", *offset));
  }
  return text;
}

absl::StatusOr<std::string> ReadSchema(const std::string& argument) {
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(argument), "{")) return argument;
  return ReadUtf8(argument, OutputConstraint::kMaxTextBytes);
}

absl::Status SetConstraint(const RequestFlags& flags, v1::GenerateRequest& request) {
  if (!flags.json_schema.empty()) {
    ASSIGN_OR_RETURN(*request.mutable_constraint()->mutable_json_schema(),
                     ReadSchema(flags.json_schema));
  }
  if (!flags.regex.empty()) request.mutable_constraint()->set_regex(flags.regex);
  for (const std::string& text : flags.choices) {
    request.mutable_constraint()->mutable_choices()->add_texts(text);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GenerateRequest> MakeRequest(const RequestFlags& flags) {
  v1::GenerateRequest request;
  request.set_request_id(flags.request_id);
  RETURN_IF_ERROR(UsageError(SetSampling(flags, *request.mutable_sampling())));
  RETURN_IF_ERROR(UsageError(SetStop(flags, *request.mutable_stop())));
  RETURN_IF_ERROR(SetConstraint(flags, request));
  if (!flags.prediction.empty()) {
    ASSIGN_OR_RETURN(*request.mutable_prediction(),
                     ReadUtf8(flags.prediction, kMaxPredictionBytes));
  }
  v1::OutputOptions& output = *request.mutable_output();
  if (flags.logprobs) output.set_logprobs(*flags.logprobs);
  if (flags.prompt_logprobs) output.set_prompt_logprobs(*flags.prompt_logprobs);
  output.set_include_special_tokens(flags.include_special_tokens);
  request.set_parse_special_tokens(flags.parse_special_tokens);
  if (flags.no_bos) request.set_add_special_tokens(false);
  request.set_cache_salt(flags.cache_salt);
  if (flags.priority) request.set_priority(*flags.priority);
  return request;
}

std::string WithFlagNames(absl::string_view message) {
  constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"sampling.num_outputs", "--n"},
      {"stop.stop_strings", "--stop"},
      {"stop.include_stop_string", "--include-stop"},
      {"constraint.json_schema", "--json-schema"},
      {"constraint.regex", "--regex"},
      {"constraint.choices", "--choice"}};
  for (const auto& [field, flag] : kNames) {
    if (absl::ConsumePrefix(&message, field)) return absl::StrCat(flag, message);
  }
  constexpr absl::string_view kPlainNames[] = {
      "temperature",      "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
      "frequency_penalty"};
  for (const absl::string_view name : kPlainNames) {
    if (absl::StartsWith(message, absl::StrCat(name, " is "))) {
      return WithFlagNames(absl::StrCat("sampling.", message));
    }
  }
  for (const absl::string_view group : {"sampling.", "stop.", "output."}) {
    if (!absl::ConsumePrefix(&message, group)) continue;
    const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
    return absl::StrCat("--", absl::StrReplaceAll(message.substr(0, end), {{"_", "-"}}),
                        end == absl::string_view::npos ? "" : message.substr(end));
  }
  return std::string(message);
}

}  // namespace lockstep
