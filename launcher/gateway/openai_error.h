// Errors as OpenAI's HTTP API has them, and its JSON as text. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/http/http_exchange.h"
#include "nlohmann/json.hpp"

namespace lockstep {

// {"error": {...}} with that status.
HttpReply OpenAiError(int status, absl::string_view message, absl::string_view code = "");
// For HttpServerOptions::refusal.
HttpReply OpenAiRefusal(int status, absl::string_view why);
// With the status that says the same in HTTP, and what clients look for: the field at fault, by
// OpenAI's name, and the code of prompts that are too long.
HttpReply OpenAiError(const absl::Status& status);
// What the server says of the constraint of a request, in words of the field that asks for it;
// other errors as they are.
absl::Status AboutConstraint(const absl::Status& status, const std::string& field);
// The same as an event within a stream.
nlohmann::ordered_json OpenAiErrorJson(const absl::Status& status);
int HttpStatusOf(absl::StatusCode code);

// Whatever a string holds, valid UTF-8.
std::string DumpJson(const nlohmann::ordered_json& json);

}  // namespace lockstep
