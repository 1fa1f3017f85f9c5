// Calls of functions as models write them, in texts that may hold some.
//
// Llama 3 writes a call as JSON alone, {"name": ..., "parameters": {...}} (llama.com/docs, "Tool
// calling"), Mistral as a list of such with "arguments" (docs.mistral.ai, "Function calling"),
// Hermes and Qwen between <tool_call> and </tool_call>, after text or not
// (github.com/NousResearch/Hermes-Function-Calling).
//
// Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"

namespace lockstep::grammar {

inline constexpr char kToolCallBegin[] = "<tool_call>";
inline constexpr char kToolCallEnd[] = "</tool_call>";

struct ToolCalls {
  enum class Form { kJson, kList, kMarked };
  struct Function {
    std::string name;
    std::string parameters;  // a JSON Schema of objects; empty: it takes none
  };
  Form form = Form::kJson;
  std::vector<Function> functions;
  bool required = false;  // the text is a call, and nothing else
};

// As OutputConstraint::text has them.
std::string TextOf(const ToolCalls& calls);

// text: TextOf some. Texts are free where none is required, but what begins like a call of these
// functions, where calls stand in that form, is one, or several. INVALID_ARGUMENT: text is none of
// TextOf's; a function has no name, or its schema is not supported, which is named with its place.
absl::StatusOr<GrammarBuilder::Part> AddToolCalls(std::string_view text, GrammarBuilder& builder);

}  // namespace lockstep::grammar
