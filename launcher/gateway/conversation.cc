#include "launcher/gateway/conversation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "launcher/gateway/constraint_fields.h"
#include "launcher/gateway/tool_schema.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr int kMaxValueDepth = 64;
constexpr size_t kMaxToolNameBytes = 256;
constexpr json::error_handler_t kReplace = json::error_handler_t::replace;

// A text, or parts of which all are text.
absl::StatusOr<std::string> ContentOf(const json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "content must be a string or an array of text parts"));
  }
  std::string text;
  for (const json& part : content) {
    RequestFields fields(part, where + "content[].");
    const auto type = fields.Text("type");
    const auto piece = fields.Text("text");
    if (type != "text")
      fields.Fail("type", "must be \"text\": images, audio and files are not read");
    if (!piece) fields.Fail("text", "is missing");
    RETURN_IF_ERROR(fields.Finish());
    text += *piece;
  }
  return text;
}

// A call that the assistant made: its arguments are JSON in a string, and an object in templates.
absl::StatusOr<Ordered> ToolCallOf(const json& value, const std::string& where) {
  RequestFields fields(value, where);
  const std::string id = fields.Text("id").value_or("");
  const std::string type = fields.Text("type").value_or("function");
  if (type != "function") fields.Fail("type", "must be \"function\"");
  fields.Ignore("index");
  const json* function = fields.Value("function");
  if (function == nullptr) fields.Fail("function", "is missing");
  RETURN_IF_ERROR(fields.Finish());
  RequestFields inner(*function, where + "function.");
  const auto name = inner.Text("name");
  std::string arguments = inner.Text("arguments").value_or("");
  if (arguments.empty()) arguments = "{}";
  if (!name) inner.Fail("name", "is missing");
  RETURN_IF_ERROR(inner.Finish());
  auto parsed = ParseStrictOrderedJson(arguments, kMaxValueDepth);
  if (!parsed.ok() || !parsed->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, "function.arguments must be a JSON object in a string, not ", Quoted(arguments)));
  }
  Ordered call = {{"id", id}, {"type", "function"}};
  call["function"] = {{"name", *name}, {"arguments", *std::move(parsed)}};
  return call;
}

// What is read as values rather than as text.
absl::Status CheckStructure(size_t num_bytes) {
  if (num_bytes <= kMaxStructureBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tools, chat_template_kwargs and arguments of calls have ", num_bytes,
                   " bytes: at most ", kMaxStructureBytes));
}

absl::Status ReadToolCalls(const json* calls, const std::string& where, Ordered& message) {
  if (calls == nullptr || calls->empty()) return absl::OkStatus();
  if (!calls->is_array() || message["role"] != "assistant") {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "tool_calls must be an array, of an assistant's message"));
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    ASSIGN_OR_RETURN(Ordered call,
                     ToolCallOf((*calls)[i], absl::StrCat(where, "tool_calls[", i, "].")));
    message["tool_calls"].push_back(std::move(call));
  }
  return absl::OkStatus();
}

absl::StatusOr<Ordered> MessageOf(const json& value, const std::string& where) {
  RequestFields fields(value, where);
  std::string role = fields.Text("role").value_or("");
  if (role == "developer") role = "system";
  constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    fields.Fail("role", absl::StrCat("must be system, developer, user, assistant or tool, not ",
                                     Quoted(role)));
  }
  Ordered message = {{"role", role}};
  const json* content = fields.Value("content");
  const json* calls = fields.Value("tool_calls");
  if (content == nullptr && calls == nullptr) fields.Fail("content", "is missing");
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    if (const auto text = fields.Text(name)) message[name] = *text;
  }
  // vLLM's newer name for it; templates know the other.
  if (const auto text = fields.Text("reasoning")) message["reasoning_content"] = *text;
  fields.Refuse("refusal", json(), "cannot be given");
  fields.Refuse("audio", json(), "cannot be given");
  fields.Ignore("annotations");
  RETURN_IF_ERROR(fields.Finish());
  message["content"] = "";
  if (content != nullptr) {
    ASSIGN_OR_RETURN(message["content"], ContentOf(*content, where));
  }
  RETURN_IF_ERROR(ReadToolCalls(calls, where, message));
  return message;
}

size_t NumArgumentBytes(const json& messages) {
  size_t num_bytes = 0;
  for (const json& message : messages) {
    const json calls = message.is_object() ? message.value("tool_calls", json()) : json();
    if (calls.is_array()) num_bytes += calls.dump(-1, ' ', false, kReplace).size();
  }
  return num_bytes;
}

absl::Status ReadMessages(RequestFields& fields, OpenAiRequest& request) {
  request.chat["messages"] = Ordered::array();
  const json* messages = fields.Value("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.Fail("messages", "must be an array of at least one message");
    return absl::OkStatus();
  }
  if (messages->size() > kMaxMessages) {
    fields.Fail("messages", absl::StrCat("are ", messages->size(), ": at most ", kMaxMessages));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckStructure(NumArgumentBytes(*messages)));
  for (size_t i = 0; i < messages->size(); ++i) {
    ASSIGN_OR_RETURN(Ordered message,
                     MessageOf((*messages)[i], absl::StrCat("messages[", i, "].")));
    request.chat["messages"].push_back(std::move(message));
  }
  return absl::OkStatus();
}

// {"type": "content", "content": TEXT or parts}
absl::Status ReadPrediction(RequestFields& fields, v1::GenerateRequest& options) {
  const json* prediction = fields.Value("prediction");
  if (prediction == nullptr) return absl::OkStatus();
  RequestFields inner(*prediction, "prediction.");
  if (inner.Text("type") != "content") inner.Fail("type", "must be \"content\"");
  const json* content = inner.Value("content");
  if (content == nullptr) inner.Fail("content", "is missing");
  RETURN_IF_ERROR(inner.Finish());
  ASSIGN_OR_RETURN(*options.mutable_prediction(), ContentOf(*content, "prediction."));
  return absl::OkStatus();
}

// For templates that know it (gpt-oss's, huggingface.co/openai/gpt-oss-20b).
void ReadEffort(RequestFields& fields, OpenAiRequest& request) {
  constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  const auto effort = fields.Text("reasoning_effort");
  if (!effort) return;
  if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
    fields.Fail("reasoning_effort", absl::StrCat("must be one of ", absl::StrJoin(kEfforts, ", "),
                                                 ", not ", Quoted(*effort)));
  }
  request.chat["reasoning_effort"] = *effort;
}

absl::StatusOr<std::string> ToolNameOf(const json& tool, const std::string& where) {
  RequestFields fields(tool, where);
  if (fields.Text("type") != "function") fields.Fail("type", "must be \"function\"");
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
  std::string function;  // the only one that may be called; empty = any
};

// {"type": "function", "function": {"name": NAME}}
absl::StatusOr<std::string> ChosenFunction(const json& choice) {
  RequestFields fields(choice, "tool_choice.");
  if (fields.Text("type") != "function") fields.Fail("type", "must be \"function\"");
  const json* function = fields.Value("function");
  if (function == nullptr) fields.Fail("function", "is missing");
  RETURN_IF_ERROR(fields.Finish());
  RequestFields inner(*function, "tool_choice.function.");
  std::string name = inner.Text("name").value_or("");
  if (name.empty()) inner.Fail("name", "is missing");
  RETURN_IF_ERROR(inner.Finish());
  return name;
}

absl::StatusOr<ToolChoice> ReadToolChoice(RequestFields& fields) {
  ToolChoice read;
  const json* choice = fields.Value("tool_choice");
  if (choice == nullptr || *choice == "auto") return read;
  read.offers_tools = *choice != "none";
  read.must_call = read.offers_tools;
  if (choice->is_object()) {
    ASSIGN_OR_RETURN(read.function, ChosenFunction(*choice));
  } else if (*choice != "none" && *choice != "required") {
    fields.Fail("tool_choice", absl::StrCat("must be \"auto\", \"none\", \"required\" or a "
                                            "function's name in an object, not ",
                                            QuotedJson(*choice)));
  }
  return read;
}

// As Llama 3 writes it: other models' ways are known by their templates, later (ConstrainToCall).
absl::Status RequireCall(const std::string& function, RequestFields& fields,
                         OpenAiRequest& request) {
  if (request.tool_names.empty()) {
    fields.Fail("tool_choice", "wants a call, but there are no tools");
    return absl::OkStatus();
  }
  if (!function.empty() && !request.tool_names.contains(function)) {
    fields.Fail("tool_choice", absl::StrCat("names ", Quoted(function), ", which no tool is"));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Ordered schema, ToolCallSchema(request.chat["tools"], function));
  AskForJson(schema.dump(-1, ' ', false, kReplace), "tool_choice", fields, request.options);
  request.required_call = function;
  return absl::OkStatus();
}

// As it stands in the body, in which names have an order.
absl::StatusOr<Ordered> OrderedField(absl::string_view body, const char* name, const json& value) {
  RETURN_IF_ERROR(CheckStructure(value.dump(-1, ' ', false, kReplace).size()));
  return ParseStrictOrderedField({body.data(), body.size()}, name, kMaxValueDepth);
}

absl::Status ReadTools(absl::string_view body, bool offers_tools, RequestFields& fields,
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

absl::Status ReadConversation(absl::string_view body, RequestFields& fields,
                              OpenAiRequest& request) {
  request.chat = Ordered::object();
  const json* more = fields.Value("chat_template_kwargs");
  if (more != nullptr && !more->is_object()) {
    fields.Fail("chat_template_kwargs", "must be an object");
  } else if (more != nullptr) {
    ASSIGN_OR_RETURN(request.chat, OrderedField(body, "chat_template_kwargs", *more));
    for (const char* name : {"messages", "tools"}) request.chat.erase(name);
  }
  ReadEffort(fields, request);
  request.chat["add_generation_prompt"] = fields.Bool("add_generation_prompt").value_or(true);
  fields.Refuse("continue_final_message", false, "must be false: the assistant begins a message");
  RETURN_IF_ERROR(ReadMessages(fields, request));
  RETURN_IF_ERROR(ReadPrediction(fields, request.options));
  fields.Ignore("parallel_tool_calls");  // a call that must be made is one
  ASSIGN_OR_RETURN(const ToolChoice choice, ReadToolChoice(fields));
  RETURN_IF_ERROR(ReadTools(body, choice.offers_tools, fields, request));
  return choice.must_call ? RequireCall(choice.function, fields, request) : absl::OkStatus();
}

}  // namespace lockstep
