#include "launcher/gateway/constraint_fields.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/grammar/output_constraint.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 64;
constexpr char kAnyObject[] = R"({"type":"object"})";

// vLLM's names of the three kinds.
struct KindNames {
  const char* json;
  const char* regex;
  const char* choice;
};
constexpr KindNames kGuided = {"guided_json", "guided_regex", "guided_choice"};
constexpr KindNames kStructured = {"json", "regex", "choice"};

template <typename Json>
std::string Dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void AskForJson(std::string schema, const char* name, RequestFields& fields,
                v1::GenerateRequest& options) {
  v1::OutputConstraint* constraint = NewConstraint(schema.size(), name, fields, options);
  if (constraint != nullptr) constraint->set_json_schema(std::move(schema));
}

class ConstraintReader {
 public:
  ConstraintReader(absl::string_view body, v1::GenerateRequest& options)
      : body_(body), options_(options) {}

  absl::Status ReadResponseFormat(RequestFields& fields);
  absl::Status ReadStructuredOutputs(RequestFields& fields);
  // outer: the names around them in the body.
  void ReadKinds(const KindNames& names, const std::vector<const char*>& outer,
                 RequestFields& fields);

 private:
  void ReadSchema(const char* name, std::vector<const char*> path, RequestFields& fields);
  void ReadRegex(const char* name, RequestFields& fields);
  void ReadChoices(const char* name, RequestFields& fields);

  const absl::string_view body_;
  v1::GenerateRequest& options_;
};

// An object that stands at `path` in the body, or a string that holds JSON.
void ConstraintReader::ReadSchema(const char* name, std::vector<const char*> path,
                                  RequestFields& fields) {
  const json* value = fields.Value(name);
  if (value == nullptr) return;
  if (value->is_string()) {
    AskForJson(value->get<std::string>(), name, fields, options_);
    return;
  }
  if (!value->is_object()) {
    fields.Fail(name, "must be an object, or a string of JSON");
    return;
  }
  // Its size is known before names get their order, which takes memory and time.
  v1::OutputConstraint* constraint = NewConstraint(Dumped(*value).size(), name, fields, options_);
  if (constraint == nullptr) return;
  path.push_back(name);
  auto ordered =
      ParseStrictOrderedField({body_.data(), body_.size()}, path.front(), kMaxSchemaDepth);
  if (!ordered.ok()) {
    fields.Fail(name, absl::StrCat("is no schema: ", ordered.status().message()));
    return;
  }
  const Ordered* schema = &*ordered;
  for (size_t i = 1; i < path.size(); ++i) schema = &schema->at(path[i]);
  constraint->set_json_schema(Dumped(*schema));
}

void ConstraintReader::ReadRegex(const char* name, RequestFields& fields) {
  auto pattern = fields.Text(name);
  if (!pattern) return;
  v1::OutputConstraint* constraint = NewConstraint(pattern->size(), name, fields, options_);
  if (constraint != nullptr) constraint->set_regex(*std::move(pattern));
}

void ConstraintReader::ReadChoices(const char* name, RequestFields& fields) {
  const json* value = fields.Value(name);
  if (value == nullptr) return;
  const bool are_texts = value->is_array() && !value->empty() &&
                         std::all_of(value->begin(), value->end(),
                                     [](const json& entry) { return entry.is_string(); });
  if (!are_texts) {
    fields.Fail(name, "must be an array of strings, at least one");
    return;
  }
  v1::OutputConstraint* constraint = NewConstraint(Dumped(*value).size(), name, fields, options_);
  if (constraint == nullptr) return;
  for (const json& text : *value) constraint->mutable_choices()->add_texts(text.get<std::string>());
}

void ConstraintReader::ReadKinds(const KindNames& names, const std::vector<const char*>& outer,
                                 RequestFields& fields) {
  ReadSchema(names.json, outer, fields);
  ReadRegex(names.regex, fields);
  ReadChoices(names.choice, fields);
}

absl::Status ConstraintReader::ReadResponseFormat(RequestFields& fields) {
  const json* format = fields.Value("response_format");
  if (format == nullptr) return absl::OkStatus();
  RequestFields inner(*format, "response_format.");
  const std::string type = inner.Text("type").value_or("");
  if (type != "text" && type != "json_object" && type != "json_schema") {
    inner.Fail("type",
               absl::StrCat("must be text, json_object or json_schema, not ", Quoted(type)));
  }
  const json* named = inner.Value("json_schema");
  if (named == nullptr && type == "json_schema") inner.Fail("json_schema", "is missing");
  if (named != nullptr && type != "json_schema") {
    inner.Fail("json_schema", "is for \"type\": \"json_schema\"");
  }
  RETURN_IF_ERROR(inner.Finish());
  if (type == "json_object") AskForJson(kAnyObject, "response_format", fields, options_);
  if (named == nullptr) return absl::OkStatus();
  RequestFields described(*named, "response_format.json_schema.");
  for (const char* name : {"name", "description"}) described.Text(name);
  described.Bool("strict");  // it is always
  const json* schema = described.Value("schema");
  if (schema == nullptr || !schema->is_object()) described.Fail("schema", "must be an object");
  ReadSchema("schema", {"response_format", "json_schema"}, described);
  return described.Finish();
}

absl::Status ConstraintReader::ReadStructuredOutputs(RequestFields& fields) {
  const json* outputs = fields.Value("structured_outputs");
  if (outputs == nullptr || *outputs == json::object()) return absl::OkStatus();
  RequestFields inner(*outputs, "structured_outputs.");
  for (const char* name : {"grammar", "structural_tag"}) {
    inner.Refuse(name, json(), "cannot be given: say json, regex or choice instead");
  }
  const bool any_object = inner.Bool("json_object").value_or(false);
  const bool asks = any_object || inner.Value(kStructured.json) != nullptr ||
                    inner.Value(kStructured.regex) != nullptr ||
                    inner.Value(kStructured.choice) != nullptr;
  if (!asks) fields.Fail("structured_outputs", "must have json, json_object, regex or choice");
  if (any_object) AskForJson(kAnyObject, "json_object", inner, options_);
  ReadKinds(kStructured, {"structured_outputs"}, inner);
  return inner.Finish();
}

}  // namespace

std::string ConstraintFieldOf(const json& request, const v1::OutputConstraint& constraint) {
  if (constraint.has_tool_calls()) return "tools";
  for (const char* name :
       {"structured_outputs", kGuided.json, kGuided.regex, kGuided.choice, "response_format"}) {
    const auto field = request.find(name);
    if (field == request.end() || field->is_null()) continue;
    const bool is_text = field->is_object() && field->value("type", json()) == "text";
    if (!is_text) return name;
  }
  return "tools";
}

v1::OutputConstraint* NewConstraint(size_t num_bytes, const char* name, RequestFields& fields,
                                    v1::GenerateRequest& options) {
  if (options.has_constraint()) {
    fields.Fail(name,
                "is a second constraint of the output: give one of response_format, "
                "structured_outputs, guided_json, guided_regex, guided_choice and tool_choice");
    return nullptr;
  }
  if (num_bytes > OutputConstraint::kMaxTextBytes) {
    fields.Fail(name, absl::StrCat("makes a constraint of ", num_bytes, " bytes: at most ",
                                   OutputConstraint::kMaxTextBytes));
    return nullptr;
  }
  return options.mutable_constraint();
}

absl::Status ReadConstraint(absl::string_view body, RequestFields& fields,
                            v1::GenerateRequest& options) {
  for (const char* name : {"guided_grammar", "structural_tag"}) {
    fields.Refuse(name, json(), "cannot be given: say response_format or structured_outputs");
  }
  ConstraintReader reader(body, options);
  RETURN_IF_ERROR(reader.ReadResponseFormat(fields));
  reader.ReadKinds(kGuided, {}, fields);
  return reader.ReadStructuredOutputs(fields);
}

}  // namespace lockstep
