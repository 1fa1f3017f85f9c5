#include "launcher/gateway/tools.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/gateway/constraint_fields.h"
#include "launcher/gateway/ordered_values.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr size_t kMaxToolNameBytes = 256;
constexpr const char* kMapsOfSchemas[] = {"properties",  "patternProperties", "dependentSchemas",
                                          "definitions", "dependencies",      "$defs"};
// What is in them is no schema, whatever it looks like.
constexpr const char* kValues[] = {"const", "enum"};
// For readers, not for validators.
constexpr const char* kAnnotations[] = {"title", "description", "$comment", "default", "examples"};
constexpr char kAnyArguments[] = R"({"type":"object"})";

absl::StatusOr<std::string> ToolNameOf(const json& tool, const std::string& where) {
  RequestFields fields(tool, where);
  if (fields.Text("type").value_or("function") != "function") {
    fields.Fail("type", "must be \"function\"");
  }
  const json* function = fields.Value("function");
  if (function == nullptr) fields.Fail("function", "is missing");
  RETURN_IF_ERROR(fields.Finish());
  RequestFields inner(*function, where + "function.");
  const std::string name = inner.Text("name").value_or("");
  if (name.empty() || name.size() > kMaxToolNameBytes) {
    inner.Fail("name", absl::StrCat("must have 1 to ", kMaxToolNameBytes, " bytes"));
  }
  inner.Text("description");
  inner.Bool("strict");
  const json* parameters = inner.Value("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    inner.Fail("parameters", "must be an object");
  }
  RETURN_IF_ERROR(inner.Finish());
  return name;
}

struct ToolChoice {
  bool offers_tools = true;
  bool must_call = false;
  std::set<std::string> functions;  // the only ones that may be called; empty = any
};

// {"type": "function", "function": {"name": NAME}}
absl::StatusOr<std::string> ChosenFunction(const json& choice, const std::string& where) {
  RequestFields fields(choice, where);
  if (fields.Text("type") != "function") {
    fields.Fail("type", "must be \"function\", or of tool_choice \"allowed_tools\"");
  }
  const json* function = fields.Value("function");
  if (function == nullptr) fields.Fail("function", "is missing");
  RETURN_IF_ERROR(fields.Finish());
  RequestFields inner(*function, where + "function.");
  std::string name = inner.Text("name").value_or("");
  if (name.empty()) inner.Fail("name", "is missing");
  RETURN_IF_ERROR(inner.Finish());
  return name;
}

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}
absl::Status ReadAllowedTools(const json& choice, ToolChoice& read) {
  RequestFields fields(choice, "tool_choice.");
  fields.Text("type");
  const json* allowed = fields.Value("allowed_tools");
  if (allowed == nullptr) fields.Fail("allowed_tools", "is missing");
  RETURN_IF_ERROR(fields.Finish());
  RequestFields inner(*allowed, "tool_choice.allowed_tools.");
  const std::string mode = inner.Text("mode").value_or("");
  if (mode != "auto" && mode != "required") {
    inner.Fail("mode", absl::StrCat("must be auto or required, not ", Quoted(mode)));
  }
  const json* tools = inner.Value("tools");
  if (tools == nullptr || !tools->is_array() || tools->empty() || tools->size() > kMaxTools) {
    inner.Fail("tools", absl::StrCat("must be an array of 1 to ", kMaxTools));
  }
  RETURN_IF_ERROR(inner.Finish());
  read.must_call = mode == "required";
  for (size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(
        std::string name,
        ChosenFunction((*tools)[i], absl::StrCat("tool_choice.allowed_tools.tools[", i, "].")));
    read.functions.insert(std::move(name));
  }
  return absl::OkStatus();
}

absl::StatusOr<ToolChoice> ReadToolChoice(RequestFields& fields) {
  ToolChoice read;
  const json* choice = fields.Value("tool_choice");
  if (choice == nullptr || *choice == "auto") return read;
  if (choice->is_object() && choice->value("type", json()) == "allowed_tools") {
    RETURN_IF_ERROR(ReadAllowedTools(*choice, read));
    return read;
  }
  read.offers_tools = *choice != "none";
  read.must_call = read.offers_tools;
  if (choice->is_object()) {
    ASSIGN_OR_RETURN(std::string name, ChosenFunction(*choice, "tool_choice."));
    read.functions.insert(std::move(name));
  } else if (*choice != "none" && *choice != "required") {
    fields.Fail("tool_choice", absl::StrCat("must be \"auto\", \"none\", \"required\" or a "
                                            "function's name in an object, not ",
                                            QuotedJson(*choice)));
  }
  return read;
}

bool IsOneOf(const std::string& name, const auto& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// They are long, and change nothing.
void StripAnnotations(Ordered& schema) {
  if (schema.is_array()) {
    for (Ordered& entry : schema) StripAnnotations(entry);
  }
  if (!schema.is_object()) return;
  for (const char* name : kAnnotations) schema.erase(name);
  for (auto& [name, value] : schema.items()) {
    if (IsOneOf(name, kMapsOfSchemas) && value.is_object()) {
      for (auto& inner : value.items()) StripAnnotations(inner.value());
    } else if (!IsOneOf(name, kValues)) {
      StripAnnotations(value);
    }
  }
}

// Of a function's arguments, an object whatever else its schema allows; empty: it takes none.
absl::StatusOr<std::string> ParametersOf(const Ordered& function) {
  Ordered schema = function.value("parameters", Ordered());
  if (schema.is_null()) return "";
  const Ordered types = schema.value("type", Ordered("object"));
  const bool may_be_object = types.is_array()
                                 ? std::find(types.begin(), types.end(), "object") != types.end()
                                 : types == "object";
  if (!may_be_object) {
    return absl::InvalidArgumentError(
        "parameters.type must be \"object\" where calls must be valid (tool_choice, strict)");
  }
  StripAnnotations(schema);
  schema["type"] = "object";
  return schema.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

bool IsStrict(const Ordered& function) {
  const auto strict = function.find("strict");
  return strict != function.end() && *strict == true;
}

// only: of the functions that may be called; empty = any. Where none must be, those that are not
// strict take any object.
absl::StatusOr<v1::ToolCalls> CallsOf(const Ordered& tools, bool required,
                                      const std::set<std::string>& only) {
  v1::ToolCalls calls;
  calls.set_required(required);
  for (size_t i = 0; i < tools.size(); ++i) {
    const Ordered& offered = tools[i].at("function");
    if (!only.empty() && !only.contains(offered.at("name").get<std::string>())) continue;
    v1::ToolCalls::Function& function = *calls.add_functions();
    function.set_name(offered.at("name").get<std::string>());
    function.set_parameters(kAnyArguments);
    if (!required && !IsStrict(offered)) continue;
    auto parameters = ParametersOf(offered);
    if (!parameters.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tools[", i, "].function.", parameters.status().message()));
    }
    function.set_parameters(*std::move(parameters));
  }
  return calls;
}

// The schema of a response_format, which is of what an answer says: a call says nothing.
std::optional<std::string> TakeAnswer(const RequestFields& fields, v1::GenerateRequest& options) {
  if (!options.constraint().has_json_schema() ||
      ConstraintFieldOf(fields.object(), options.constraint()) != "response_format") {
    return std::nullopt;
  }
  std::string schema = options.constraint().json_schema();
  options.clear_constraint();
  return schema;
}

absl::Status ConstrainCalls(const ToolChoice& choice, RequestFields& fields,
                            OpenAiRequest& request) {
  const bool has_tools = !request.tool_names.empty();
  if (choice.must_call && !has_tools) {
    fields.Fail("tool_choice", "wants a call, but there are no tools");
    return absl::OkStatus();
  }
  for (const std::string& name : choice.functions) {
    if (request.tool_names.contains(name)) continue;
    fields.Fail("tool_choice", absl::StrCat("names ", Quoted(name), ", which no tool is"));
    return absl::OkStatus();
  }
  if (!has_tools) return absl::OkStatus();
  if (!choice.functions.empty()) request.tool_names = choice.functions;
  const Ordered& tools = request.chat["tools"];
  const bool has_strict = std::any_of(tools.begin(), tools.end(), [&](const Ordered& tool) {
    const Ordered& function = tool.at("function");
    return IsStrict(function) && request.tool_names.contains(function.at("name"));
  });
  // What nobody asked for stands in the way of nothing.
  const v1::StopOptions& stop = request.options.stop();
  const bool may_constrain = has_strict && !request.options.has_constraint() &&
                             !stop.ignore_eos() && stop.min_tokens() == 0;
  const std::optional<std::string> answer = TakeAnswer(fields, request.options);
  if (!choice.must_call && !may_constrain && !answer) return absl::OkStatus();
  ASSIGN_OR_RETURN(v1::ToolCalls calls, CallsOf(tools, choice.must_call, choice.functions));
  if (answer && !choice.must_call) calls.set_answer(*answer);
  v1::OutputConstraint* constraint = NewConstraint(
      calls.ByteSizeLong(), choice.must_call ? "tool_choice" : "tools", fields, request.options);
  if (constraint != nullptr) *constraint->mutable_tool_calls() = std::move(calls);
  return absl::OkStatus();
}

absl::Status ReadFunctions(absl::string_view body, bool offers_tools, RequestFields& fields,
                           OpenAiRequest& request) {
  const json* tools = fields.Value("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array() || tools->size() > kMaxTools) {
    fields.Fail("tools", absl::StrCat("must be an array of at most ", kMaxTools));
    return absl::OkStatus();
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools->size(); ++i) {
    ASSIGN_OR_RETURN(const std::string name,
                     ToolNameOf((*tools)[i], absl::StrCat("tools[", i, "].")));
    names.insert(name);
  }
  if (!offers_tools || names.empty()) return absl::OkStatus();
  request.tool_names = std::move(names);
  ASSIGN_OR_RETURN(request.chat["tools"], OrderedField(body, "tools", *tools));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadTools(absl::string_view body, RequestFields& fields, OpenAiRequest& request) {
  fields.Ignore("parallel_tool_calls");  // a call that must be made is one
  ASSIGN_OR_RETURN(const ToolChoice choice, ReadToolChoice(fields));
  RETURN_IF_ERROR(ReadFunctions(body, choice.offers_tools, fields, request));
  return ConstrainCalls(choice, fields, request);
}

}  // namespace lockstep
