#include "launcher/gateway/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/client/begun_marker.h"
#include "model/grammar/tool_calls.h"
#include "model/json/strict_json.h"
#include "model/stable_hash.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

const absl::string_view kOpen = grammar::kToolCallBegin;
const absl::string_view kClose = grammar::kToolCallEnd;
// What Llama 3 may write before its JSON, and Mistral does, where special tokens are shown.
constexpr absl::string_view kListMarker = "[TOOL_CALLS]";
constexpr absl::string_view kPrefixes[] = {"<|python_tag|>", kListMarker};
constexpr int kMaxDepth =
    grammar::kMaxDepth + 8;  // of arguments that a schema allows, and a call around
constexpr int kMostMarkersInACall = 16;

// An object as JSON; models may write it in a string, as it is told to clients. nullopt: it is
// none.
std::optional<std::string> ArgumentsOf(const Json& json) {
  if (json.is_null()) return "{}";
  if (json.is_object()) return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (!json.is_string()) return std::nullopt;
  const auto inner = ParseStrictOrderedJson(json.get<std::string>(), kMaxDepth);
  return inner.ok() && inner->is_object() ? ArgumentsOf(*inner) : std::nullopt;
}

// Nothing else: an answer in JSON may have a name, too.
bool IsNameAlone(const Json& json) {
  return std::all_of(json.items().begin(), json.items().end(), [](const auto& item) {
    return item.key() == "name" || item.key() == "type" || item.key() == "id";
  });
}

std::optional<ToolCall> CallOf(const Json& json, const std::set<std::string>& offered) {
  if (!json.is_object()) return std::nullopt;
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) return std::nullopt;
  if (!offered.contains(name->get<std::string>())) return std::nullopt;
  for (const char* field : {"parameters", "arguments"}) {
    const auto arguments = json.find(field);
    if (arguments == json.end()) continue;
    auto text = ArgumentsOf(*arguments);
    if (!text) return std::nullopt;
    return ToolCall{name->get<std::string>(), *std::move(text)};
  }
  if (!IsNameAlone(json)) return std::nullopt;
  return ToolCall{name->get<std::string>(), "{}"};  // of a function that takes none
}

// A call, or a list of calls and nothing else; nullopt: it is none.
std::optional<std::vector<ToolCall>> CallsOf(absl::string_view text,
                                             const std::set<std::string>& offered) {
  const absl::string_view whole = absl::StripAsciiWhitespace(text);
  const auto json = ParseStrictOrderedJson({whole.data(), whole.size()}, kMaxDepth);
  if (!json.ok()) return std::nullopt;
  std::vector<ToolCall> calls;
  const Json list = json->is_array() ? *json : Json::array({*json});
  for (const Json& entry : list) {
    std::optional<ToolCall> call = CallOf(entry, offered);
    if (!call) return std::nullopt;
    calls.push_back(*std::move(call));
  }
  return calls.empty() ? std::nullopt : std::optional(std::move(calls));
}

// Up to </tool_call>, which is left out of the text, or up to the text's end. An argument may hold
// such a marker.
std::optional<std::vector<ToolCall>> TakeMarkedCalls(absl::string_view& text,
                                                     const std::set<std::string>& offered) {
  size_t end = text.find(kClose);
  for (int i = 0; i < kMostMarkersInACall; ++i) {
    auto calls = CallsOf(text.substr(0, end), offered);
    if (calls || end == absl::string_view::npos) {
      text.remove_prefix(std::min(end, text.size()));
      absl::ConsumePrefix(&text, kClose);
      return calls;
    }
    end = text.find(kClose, end + 1);
  }
  return std::nullopt;
}

void AppendUnlessBlank(absl::string_view text, std::string& content) {
  if (!absl::StripAsciiWhitespace(text).empty()) content.append(text.data(), text.size());
}

// "<tool_call>{...}</tool_call>", any number, of which the last may lack its end, and text.
std::optional<ToolOutput> SplitMarked(absl::string_view text,
                                      const std::set<std::string>& offered) {
  const size_t first = text.find(kOpen);
  if (first == absl::string_view::npos) return std::nullopt;
  ToolOutput output{std::string(text.substr(0, first)), {}};
  absl::string_view rest = text.substr(first);
  for (size_t open = 0; open != absl::string_view::npos; open = rest.find(kOpen)) {
    AppendUnlessBlank(rest.substr(0, open), output.content);
    rest.remove_prefix(open + kOpen.size());
    const auto calls = TakeMarkedCalls(rest, offered);
    if (!calls) return std::nullopt;
    output.calls.insert(output.calls.end(), calls->begin(), calls->end());
  }
  AppendUnlessBlank(rest, output.content);
  return output;
}

}  // namespace

v1::ToolCalls::Form ToolCallFormOf(absl::string_view chat_template) {
  // Qwen3-Coder and GLM 4.5 have XML between the same markers.
  const bool has_xml = absl::StrContains(chat_template, "<function=") ||
                       absl::StrContains(chat_template, "<arg_key>");
  if (absl::StrContains(chat_template, kOpen) && !has_xml) return v1::ToolCalls::FORM_MARKED;
  // Later Mistral models have NAME[ARGS]{...} there.
  const bool has_lists =
      absl::StrContains(chat_template, kListMarker) && !absl::StrContains(chat_template, "[ARGS]");
  return has_lists ? v1::ToolCalls::FORM_LIST : v1::ToolCalls::FORM_JSON;
}

bool WantsShortIds(absl::string_view chat_template) {
  return absl::StrContains(chat_template, kListMarker);
}

std::string ToolCallId(absl::string_view request_id, size_t output, size_t index, bool is_short) {
  constexpr int kShort = 9;
  constexpr int kLong = 24;  // with call_ less than the 40 bytes that OpenAI takes of messages
  constexpr char kDigits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  const std::string call = absl::StrCat(request_id, "/", output, "/", index);
  std::string id = is_short ? "" : "call_";
  uint64_t hash = 0;
  for (int i = 0; i < (is_short ? kShort : kLong); ++i, hash /= 62) {
    if (i % kShort == 0) hash = Fnv1a64(absl::StrCat(call, "/", i));
    id += kDigits[hash % 62];
  }
  return id;
}

ToolOutput SplitToolCalls(absl::string_view text, const std::set<std::string>& offered,
                          std::optional<v1::ToolCalls::Form> only) {
  const bool reads_marked = !only || *only == v1::ToolCalls::FORM_MARKED;
  if (reads_marked) {
    if (auto marked = SplitMarked(text, offered)) return *std::move(marked);
  }
  if (only && (reads_marked ||
               !grammar::BeginsLikeACall({text.data(), text.size()},
                                         static_cast<grammar::ToolCalls::Form>(*only), offered))) {
    return {std::string(text), {}};
  }
  absl::string_view json = absl::StripLeadingAsciiWhitespace(text);
  for (const absl::string_view prefix : kPrefixes) absl::ConsumePrefix(&json, prefix);
  if (auto calls = CallsOf(json, offered)) return {"", *std::move(calls)};
  return {std::string(text), {}};
}

size_t NumContentBytes(absl::string_view text, size_t num_known) {
  if (text.empty() || text[0] == '{' || text[0] == '[') return 0;
  for (const absl::string_view prefix : kPrefixes) {
    if (absl::StartsWith(text, prefix) || absl::StartsWith(prefix, text)) return 0;
  }
  const size_t marker = text.find(kOpen, num_known);
  return marker != absl::string_view::npos ? marker : text.size() - NumBegun(text, kOpen);
}

}  // namespace lockstep
