// Calls of functions as models write them, in texts that may hold some.
//
// Llama 3 writes a call as JSON alone, {"name": ..., "parameters": {...}} (llama.com/docs, "Tool
// calling"), Mistral as a list of such with "arguments" (docs.mistral.ai, "Function calling"),
// Hermes and Qwen between <tool_call> and </tool_call>, after text or not
// (github.com/NousResearch/Hermes-Function-Calling).
//
// Pure functions, any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
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
    std::string parameters;  // a JSON Schema; empty: it takes none

    bool operator==(const Function&) const = default;
  };
  static constexpr size_t kMaxFunctions = 128;

  Form form = Form::kJson;
  bool required = false;  // the text is a call, and nothing else
  std::vector<Function> functions;
  // A JSON Schema: of a text that is no call. None: such a text is free. Not where one is required.
  std::optional<std::string> answer = std::nullopt;

  bool operator==(const ToolCalls&) const = default;
};

// INVALID_ARGUMENT: none, or more than kMaxFunctions.
absl::Status CheckNumFunctions(size_t num_functions);
// As OutputConstraint::text has them: little more than their own bytes.
std::string TextOf(const ToolCalls& calls);
// INVALID_ARGUMENT: text is not TextOf any.
absl::StatusOr<ToolCalls> ParseToolCalls(std::string_view text);

// Texts are free where no call is required and no answer asked for, but what begins like a call of
// these functions, where calls stand in that form, is one, or several; arguments are valid against
// the schemas. It begins so with "<tool_call>" anywhere (kMarked), or as BeginsLikeACall says.
// after_thought: the text may also follow a thought; one that holds a thought itself is none of
// these. INVALID_ARGUMENT: as CheckNumFunctions; one has no name, or a schema that is not
// supported, which is named with its place.
absl::StatusOr<GrammarBuilder::Part> AddToolCalls(const ToolCalls& calls, bool after_thought,
                                                  GrammarBuilder& builder);

// Of kJson and kList: whether the text begins with white space, brackets, perhaps "type":
// "function", "name" and the name of a function, between which there is the white space that calls
// have.
bool BeginsLikeACall(std::string_view text, ToolCalls::Form form,
                     const std::set<std::string>& names);

}  // namespace lockstep::grammar
