#include "launcher/gateway/conversation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "launcher/gateway/ordered_values.h"
#include "launcher/gateway/tools.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

constexpr json::error_handler_t kReplace = json::error_handler_t::replace;

// Of a message, as vLLM joins them for templates that take content as one text.
constexpr char kBetweenParts[] = "\n";

// What clients keep with messages that they got from this server or another, and send back.
void IgnoreResidue(RequestFields& fields) {
  for (const char* name : {"provider_specific_fields", "extra_content", "cache_control"}) {
    fields.Ignore(name);
  }
}

// A text, by its names in Chat Completions and in Responses, or one in which a model of OpenAI's
// has refused.
absl::StatusOr<std::string> PartOf(const json& part, const std::string& where) {
  if (part.is_string()) return part.get<std::string>();
  RequestFields fields(part, where);
  const std::string type = fields.Text("type").value_or("");
  const bool is_refusal = type == "refusal";
  if (!is_refusal && type != "text" && type != "input_text" && type != "output_text") {
    fields.Fail("type", "must be \"text\": images, audio and files are not read");
  }
  const char* name = is_refusal ? "refusal" : "text";
  auto text = fields.Text(name);
  if (!text) fields.Fail(name, "is missing");
  IgnoreResidue(fields);
  for (const char* unused : {"annotations", "prompt_cache_breakpoint"}) fields.Ignore(unused);
  RETURN_IF_ERROR(fields.Finish());
  return *std::move(text);
}

// A text, or parts of which all are text, with `separator` between them.
absl::StatusOr<std::string> ContentOf(const json& content, const std::string& where,
                                      const char* separator) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return FieldError(where + "content",
                      absl::StrCat(where, "content must be a string or an array of text parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string piece,
                     PartOf(content[i], absl::StrCat(where, "content[", i, "].")));
    absl::StrAppend(&text, i > 0 ? separator : "", piece);
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
  IgnoreResidue(fields);
  const json* function = fields.Value("function");
  if (function == nullptr) fields.Fail("function", "is missing");
  RETURN_IF_ERROR(fields.Finish());
  RequestFields inner(*function, where + "function.");
  const auto name = inner.Text("name");
  std::string arguments = inner.Text("arguments").value_or("");
  if (arguments.empty() || arguments == "null") arguments = "{}";
  inner.Ignore("parsed_arguments");  // openai-python's own, which it sends back
  if (!name) inner.Fail("name", "is missing");
  RETURN_IF_ERROR(inner.Finish());
  auto parsed = ParseStrictOrderedJson(arguments, kMaxValueDepth);
  if (!parsed.ok() || !parsed->is_object()) {
    return FieldError(
        where + "function.arguments",
        absl::StrCat(where, "function.arguments must be a JSON object in a string, not ",
                     Quoted(arguments)));
  }
  Ordered call = {{"id", id}, {"type", "function"}};
  call["function"] = {{"name", *name}, {"arguments", *std::move(parsed)}};
  return call;
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
  // An assistant's may have nothing but a thought that was cut off.
  if (content == nullptr && role != "assistant") fields.Fail("content", "is missing");
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    if (const auto text = fields.Text(name)) message[name] = *text;
  }
  // vLLM's newer name for it; templates know the other.
  if (const auto text = fields.Text("reasoning")) message["reasoning_content"] = *text;
  // Said instead of an answer, by models of OpenAI's.
  const std::string refusal = fields.Text("refusal").value_or("");
  fields.Refuse("audio", json(), "cannot be given");
  IgnoreResidue(fields);
  for (const char* name : {"id", "annotations", "parsed", "thinking_blocks", "reasoning_details"}) {
    fields.Ignore(name);
  }
  RETURN_IF_ERROR(fields.Finish());
  std::string text;
  if (content != nullptr) {
    ASSIGN_OR_RETURN(text, ContentOf(*content, where, kBetweenParts));
  }
  absl::StrAppend(&text, text.empty() || refusal.empty() ? "" : kBetweenParts, refusal);
  message["content"] = std::move(text);
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
  RETURN_IF_ERROR(CheckValueBytes(NumArgumentBytes(*messages)));
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
  ASSIGN_OR_RETURN(*options.mutable_prediction(), ContentOf(*content, "prediction.", ""));
  return absl::OkStatus();
}

// For templates that know it (gpt-oss's, huggingface.co/openai/gpt-oss-20b).
void ReadEffort(RequestFields& fields, OpenAiRequest& request) {
  constexpr const char* kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  const auto effort = fields.Text("reasoning_effort");
  if (!effort) return;
  if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts)) {
    fields.Fail("reasoning_effort", absl::StrCat("must be one of ", absl::StrJoin(kEfforts, ", "),
                                                 ", not ", Quoted(*effort)));
  }
  request.chat["reasoning_effort"] = *effort;
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
  request.continues_message = fields.Bool("continue_final_message").value_or(false);
  const bool begins = fields.Bool("add_generation_prompt").value_or(!request.continues_message);
  request.chat["add_generation_prompt"] = begins;
  if (begins && request.continues_message) {
    fields.Fail("add_generation_prompt", "must be false where continue_final_message is true");
  }
  RETURN_IF_ERROR(ReadMessages(fields, request));
  const Ordered& messages = request.chat["messages"];
  if (request.continues_message && !messages.empty() && messages.back()["role"] != "assistant") {
    fields.Fail("continue_final_message", "is for a last message of the assistant");
  }
  RETURN_IF_ERROR(ReadPrediction(fields, request.options));
  return ReadTools(body, fields, request);
}

}  // namespace lockstep
