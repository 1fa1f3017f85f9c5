#include "launcher/gateway/openai_error.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/gateway/request_fields.h"
#include "model/tokenizer/utf8.h"
#include "runtime/controller/request_validation.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

const char* ErrorType(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

// What the server's messages about a request begin with, and what OpenAI calls it.
constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
    {"sampling.num_outputs", "n"},          {"sampling.", ""},
    {"stop.stop_strings", "stop"},          {"stop.", ""},
    {"output.prompt_logprobs", "logprobs"}, {"output.", ""},
    {"prompt.token_ids", "prompt"},
};
constexpr absl::string_view kSameNames[] = {"temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "repetition_penalty",
                                            "presence_penalty",
                                            "frequency_penalty",
                                            "logit_bias",
                                            "stop_token_ids",
                                            "min_tokens",
                                            "max_tokens",
                                            "ignore_eos",
                                            "priority",
                                            "cache_salt",
                                            "request_id"};

// The message's first word, if it names a field of ours, in OpenAI's words: {name, all of it}.
std::pair<std::string, std::string> InOpenAisWords(absl::string_view message) {
  for (const auto& [ours, theirs] : kNames) {
    if (!absl::StartsWith(message, ours)) continue;
    const std::string words = absl::StrCat(theirs, message.substr(ours.size()));
    return {words.substr(0, words.find_first_of(" [:")), words};
  }
  const absl::string_view first = message.substr(0, message.find_first_of(" [:"));
  const bool is_name = std::count(std::begin(kSameNames), std::end(kSameNames), first) > 0;
  return {std::string(is_name ? first : ""), std::string(message)};
}

Json ErrorJson(int status, absl::string_view message, absl::string_view param,
               absl::string_view code) {
  const auto text = [](absl::string_view value) {
    return value.empty() ? Json() : Json(ValidUtf8(value));
  };
  return {{"error",
           {{"message", ValidUtf8(message)},
            {"type", ErrorType(status)},
            {"param", text(param)},
            {"code", text(code)}}}};
}

HttpReply ErrorReply(int status, const Json& error) {
  HttpReply reply{
      .status = status, .content_type = "application/json", .body = DumpJson(error), .allow = ""};
  if (status == 429 || status == 503) reply.retry_after_seconds = 1;
  return reply;
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:  // 409 would be tried again
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:  // nginx's, for its log: nobody reads it
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

HttpReply OpenAiError(int status, absl::string_view message, absl::string_view code) {
  return ErrorReply(status, ErrorJson(status, message, "", code));
}

Json OpenAiErrorJson(const absl::Status& status) {
  const int http_status = HttpStatusOf(status.code());
  if (http_status != 400) return ErrorJson(http_status, status.message(), "", "");
  const bool is_too_long = absl::StrContains(status.message(), kContextLengthWords);
  const absl::string_view code = is_too_long ? "context_length_exceeded" : "";
  if (const std::string field = FieldOf(status); !field.empty()) {
    return ErrorJson(400, status.message(), field, code);
  }
  const auto [param, message] = InOpenAisWords(status.message());
  return ErrorJson(400, message, param, code);
}

// "constraint.KIND: ..." or "constraint: ...".
absl::Status AboutConstraint(const absl::Status& status, const std::string& field) {
  constexpr absl::string_view kOurs = "constraint";
  const absl::string_view message = status.message();
  const size_t end = message.find_first_of(": ");
  if (!absl::IsInvalidArgument(status) || end == absl::string_view::npos) return status;
  const absl::string_view name = message.substr(0, end);
  if (name != kOurs && !absl::StartsWith(name, absl::StrCat(kOurs, "."))) return status;
  return FieldError(field, absl::StrCat(field, message.substr(end)));
}

HttpReply OpenAiRefusal(int status, absl::string_view why) { return OpenAiError(status, why); }

HttpReply OpenAiError(const absl::Status& status) {
  return ErrorReply(HttpStatusOf(status.code()), OpenAiErrorJson(status));
}

std::string DumpJson(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace lockstep
