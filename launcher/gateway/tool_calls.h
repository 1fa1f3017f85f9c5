// Calls of functions in what a model writes. Pure.
//
// Models say a call as they were taught: Llama 3 by JSON alone, {"name": ..., "parameters": {...}}
// (llama.com/docs, "Tool calling"), Mistral by a list of such with "arguments", Hermes and Qwen by
// one of them between <tool_call> and </tool_call>, after text or not. All are read of any model.
// What is no call of an offered function is text.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

// What a model was taught whose chat template this is.
v1::ToolCalls::Form ToolCallFormOf(absl::string_view chat_template);

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object
};

struct ToolOutput {
  std::string content;
  std::vector<ToolCall> calls;
};

// Of the index-th call of an output: call_ and 24 letters and digits, or nine, where the chat
// template takes no other of messages (Mistral's).
std::string ToolCallId(absl::string_view request_id, size_t output, size_t index, bool is_short);
bool WantsShortIds(absl::string_view chat_template);

// text: all that an output says. offered: names of functions. only: calls of that form alone are
// read, of outputs that were constrained to it: others are not sure to be valid.
ToolOutput SplitToolCalls(absl::string_view text, const std::set<std::string>& offered,
                          std::optional<v1::ToolCalls::Form> only = std::nullopt);

// Of a text that goes on, without white space before it: how many of its first bytes are content,
// whatever comes. num_known: what this said of the text's beginning.
size_t NumContentBytes(absl::string_view text, size_t num_known);

}  // namespace lockstep
