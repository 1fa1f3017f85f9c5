#include "launcher/gateway/openai_error.h"

#include "model/tokenizer/utf8.h"

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

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json OpenAiErrorJson(int status, absl::string_view message, absl::string_view code) {
  Json error = {{"message", ValidUtf8(message)}, {"type", ErrorType(status)}, {"param", nullptr}};
  error["code"] = code.empty() ? Json(nullptr) : Json(std::string(code));
  return {{"error", std::move(error)}};
}

HttpReply OpenAiError(int status, absl::string_view message, absl::string_view code) {
  HttpReply reply{.status = status,
                  .content_type = "application/json",
                  .body = DumpJson(OpenAiErrorJson(status, message, code)),
                  .allow = ""};
  if (status == 429 || status == 503) reply.retry_after_seconds = 1;
  return reply;
}

HttpReply OpenAiError(const absl::Status& status) {
  return OpenAiError(HttpStatusOf(status.code()), status.message());
}

std::string DumpJson(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace lockstep
