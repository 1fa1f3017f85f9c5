#include "launcher/gateway/tool_schema.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMapsOfSchemas[] = {"properties",  "patternProperties", "dependentSchemas",
                                          "definitions", "dependencies",      "$defs"};
// What is in them is no schema, whatever it looks like.
constexpr const char* kValues[] = {"const", "enum", "default", "example", "examples"};
// One of these says what a value is, so that a type need not.
constexpr const char* kSaysWhatItIs[] = {"$ref",  "anyOf", "oneOf", "allOf",      "not",
                                         "const", "enum",  "if",    "$dynamicRef"};

bool IsOneOf(const std::string& name, const auto& names) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// "#" and "#/..." say a place from the document's root on, which is `place` now; "#name" is found
// wherever it is.
void MoveReferences(const std::string& place, Json& schema) {
  if (schema.is_array()) {
    for (Json& entry : schema) MoveReferences(place, entry);
  }
  if (!schema.is_object()) return;
  for (auto& [name, value] : schema.items()) {
    if (name == "$ref" && value.is_string()) {
      const std::string reference = value.get<std::string>();
      const bool is_local = reference == "#" || absl::StartsWith(reference, "#/");
      if (is_local) value = absl::StrCat(place, reference.substr(1));
    } else if (IsOneOf(name, kMapsOfSchemas) && value.is_object()) {
      for (auto& inner : value.items()) MoveReferences(place, inner.value());
    } else if (!IsOneOf(name, kValues)) {
      MoveReferences(place, value);
    }
  }
}

// Of a function's arguments, at `place` in the schema of calls.
absl::StatusOr<Json> ArgumentsSchema(const Json& function, const std::string& place) {
  Json schema = function.value("parameters", Json());
  if (schema.is_null()) {
    schema = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
    return schema;
  }
  const auto type = schema.find("type");
  if (type != schema.end() && *type != "object") {
    return absl::InvalidArgumentError(
        "parameters.type must be \"object\" where tool_choice wants a call");
  }
  const bool says_what_it_is = std::any_of(std::begin(kSaysWhatItIs), std::end(kSaysWhatItIs),
                                           [&](const char* name) { return schema.contains(name); });
  if (type == schema.end() && !says_what_it_is) schema["type"] = "object";
  for (const char* name : {"$schema", "$id"}) schema.erase(name);  // a document's; it is none now
  MoveReferences(place, schema);
  return schema;
}

}  // namespace

absl::StatusOr<Json> ToolCallSchema(const Json& tools, const std::string& function,
                                    ToolCallForm form) {
  const bool is_list = form == ToolCallForm::kList;
  const char* arguments_name = form == ToolCallForm::kJson ? "parameters" : "arguments";
  const char* place = is_list ? "#/items/anyOf/" : "#/anyOf/";
  Json calls = Json::array();
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& offered = tools[i].at("function");
    if (!function.empty() && offered.at("name") != function) continue;
    auto arguments =
        ArgumentsSchema(offered, absl::StrCat(place, calls.size(), "/properties/", arguments_name));
    if (!arguments.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tools[", i, "].function.", arguments.status().message()));
    }
    Json call = {{"type", "object"}};
    call["properties"]["name"]["const"] = offered.at("name");
    call["properties"][arguments_name] = *std::move(arguments);
    call["required"] = Json::array({"name", arguments_name});
    call["additionalProperties"] = false;
    calls.push_back(std::move(call));
  }
  Json schema = Json::object();
  schema["anyOf"] = std::move(calls);
  if (!is_list) return schema;
  return Json{{"type", "array"}, {"items", std::move(schema)}, {"minItems", 1}, {"maxItems", 1}};
}

absl::Status ConstrainToCall(const Json& tools, const std::string& function, ToolCallForm form,
                             v1::OutputConstraint& constraint) {
  ASSIGN_OR_RETURN(const Json schema, ToolCallSchema(tools, function, form));
  constraint.set_json_schema(schema.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (form == ToolCallForm::kMarked) {
    constraint.set_before(absl::StrCat(kToolCallBegin, "\n"));
    constraint.set_after(absl::StrCat("\n", kToolCallEnd));
  }
  return absl::OkStatus();
}

}  // namespace lockstep
