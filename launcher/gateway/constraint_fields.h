// What the text of every output must be, as clients of OpenAI's HTTP API say it. Pure.
//
// OpenAI's response_format (platform.openai.com/docs/guides/structured-outputs), which we take of
// completions, too, and vLLM's structured_outputs and what that was before: guided_json,
// guided_regex and guided_choice (docs.vllm.ai, "Structured Outputs").
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/gateway/request_fields.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

// Reads all of these fields, of which one at most may ask for something. body: what fields are of,
// in which names have an order. Errors: fields', or INVALID_ARGUMENT naming what is wrong inside.
// What a schema or a pattern says is the server's to check.
absl::Status ReadConstraint(absl::string_view body, RequestFields& fields,
                            v1::GenerateRequest& options);

// The field of a request with a constraint that asks for it.
std::string ConstraintFieldOf(const nlohmann::json& request,
                              const v1::OutputConstraint& constraint);

// For field `name` to say what it asks for. Null, and the field fails, when another one has asked
// for something, or num_bytes are too many.
v1::OutputConstraint* NewConstraint(size_t num_bytes, const char* name, RequestFields& fields,
                                    v1::GenerateRequest& options);

}  // namespace lockstep
