#include "launcher/gateway/openai_reply.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/steady_clock.h"
#include "launcher/cli/values.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

using Json = OpenAiReply::Json;

// A token as a name: tokens that are a part of a character alone are told by their bytes, as OpenAI
// does.
std::string TokenName(const std::string& text) {
  if (!FirstInvalidUtf8(text)) return text;
  std::string name = "bytes:";
  for (const char byte : text) {
    absl::StrAppendFormat(&name, "\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(byte)));
  }
  return name;
}

Json ChatToken(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char byte : token.text()) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", ValidUtf8(token.text())}, {"logprob", token.logprob()}, {"bytes", bytes}};
}

Json ChatLogprobs(const std::vector<v1::Logprobs>& logprobs, size_t begin) {
  Json content = Json::array();
  for (size_t i = begin; i < logprobs.size(); ++i) {
    Json entry = ChatToken(logprobs[i].token());
    entry["top_logprobs"] = Json::array();
    for (const v1::TokenLogprob& top : logprobs[i].top()) {
      entry["top_logprobs"].push_back(ChatToken(top));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

const char* ErrorType(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

// The lists that completions have.
struct TokenLists {
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(),
       offsets = Json::array();
  size_t offset = 0;

  void AddFirst(const std::string& text) {
    tokens.push_back(TokenName(text));
    logprobs.push_back(nullptr);
    top.push_back(nullptr);
    Advance(text);
  }
  void Add(const v1::Logprobs& entry) {
    const v1::TokenLogprob& chosen = entry.token();
    tokens.push_back(TokenName(chosen.text()));
    logprobs.push_back(chosen.logprob());
    Json all = Json::object();
    for (const v1::TokenLogprob& token : entry.top())
      all[TokenName(token.text())] = token.logprob();
    all[TokenName(chosen.text())] = chosen.logprob();
    top.push_back(std::move(all));
    Advance(chosen.text());
  }
  void Advance(const std::string& text) {
    offsets.push_back(offset);
    offset += static_cast<size_t>(NumCharacters(text));
  }
  Json Take() {
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(logprobs)},
            {"top_logprobs", std::move(top)},
            {"text_offset", std::move(offsets)}};
  }
};

// Finish reason and, as vLLM has it, what stopped it.
void AddEnd(const v1::OutputFinished& finished, bool has_calls, Json& choice) {
  const bool ends_in_calls = has_calls && finished.reason() == v1::FINISH_REASON_STOP;
  choice["finish_reason"] = ends_in_calls ? "tool_calls" : FinishReasonName(finished.reason());
  if (finished.has_stop_string()) {
    choice["stop_reason"] = finished.stop_string();
  } else if (finished.has_stop_token_id()) {
    choice["stop_reason"] = finished.stop_token_id();
  } else {
    choice["stop_reason"] = nullptr;
  }
}

}  // namespace

OpenAiReply::OpenAiReply(const OpenAiRequest& request, size_t num_prompts, std::string model,
                         absl::Time created, std::vector<EchoedPrompt> echoed)
    : request_(request),
      num_outputs_(std::clamp(request.num_outputs(), 1, kMaxOutputs)),
      model_(std::move(model)),
      created_(absl::ToUnixSeconds(created)),
      echoed_(std::move(echoed)),
      responses_(num_prompts, Response(SteadyNow())),
      told_(num_prompts * static_cast<size_t>(num_outputs_)) {}

void OpenAiReply::Add(size_t prompt, const v1::GenerateEvent& event) {
  responses_[prompt].Add(event, SteadyNow());
}

bool OpenAiReply::all_accepted() const {
  return std::all_of(responses_.begin(), responses_.end(), [](const Response& response) {
    return !response.accepted().request_id().empty();
  });
}

Json OpenAiReply::Envelope(const char* object) const {
  const std::string& id = responses_.front().accepted().request_id();
  return {{"id", absl::StrCat(request_.is_chat ? "chatcmpl-" : "cmpl-", id)},
          {"object", object},
          {"created", created_},
          {"model", model_}};
}

Json OpenAiReply::ChunkOf(Json choice) const {
  Json chunk = Envelope(request_.is_chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(choice)});
  if (request_.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

// From the begin-th token on; begin 0 has the prompt's before it, if that is repeated. offset: the
// first one's, then the next one's.
Json OpenAiReply::LogprobsOf(size_t prompt, size_t output, size_t begin, size_t& offset) const {
  const auto& outputs = responses_[prompt].outputs();
  static const std::vector<v1::Logprobs> kNone;
  const auto& logprobs = output < outputs.size() ? outputs[output].logprobs : kNone;
  if (request_.is_chat) return ChatLogprobs(logprobs, begin);
  TokenLists lists;
  lists.offset = offset;
  if (begin == 0 && request_.echo) {
    lists.AddFirst(echoed_[prompt].first_token);
    for (const v1::Logprobs& entry : responses_[prompt].prompt_logprobs()) lists.Add(entry);
  }
  for (size_t i = begin; i < logprobs.size(); ++i) lists.Add(logprobs[i]);
  offset = lists.offset;
  return lists.Take();
}

// What stands before an output's first token: a role, or the prompt.
std::optional<Json> OpenAiReply::OpeningChunk(size_t prompt, size_t output) {
  const size_t index = IndexOf(prompt, output);
  if (std::exchange(told_[index].opened, true)) return std::nullopt;
  Json choice = {{"index", index}};
  if (request_.is_chat) {
    choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    choice["logprobs"] = nullptr;
  } else if (request_.echo) {
    choice["text"] = ValidUtf8(echoed_[prompt].text);
    choice["logprobs"] = nullptr;  // they come with the first token's
  } else {
    return std::nullopt;
  }
  choice["finish_reason"] = nullptr;
  return ChunkOf(std::move(choice));
}

Json OpenAiReply::DeltaChunk(size_t prompt, const v1::TokenDelta& delta,
                             const std::string& content) {
  const size_t index = IndexOf(prompt, delta.output_index());
  Json choice = {{"index", index}};
  if (request_.is_chat) {
    choice["delta"] = {{"content", ValidUtf8(content)}};
  } else {
    choice["text"] = ValidUtf8(content);
  }
  choice["logprobs"] = nullptr;
  if (request_.wants_logprobs() && !delta.logprobs().empty()) {
    Told& told = told_[index];
    choice["logprobs"] = LogprobsOf(prompt, delta.output_index(), told.num_tokens, told.offset);
    told.num_tokens += static_cast<size_t>(delta.logprobs_size());
  }
  choice["finish_reason"] = nullptr;
  return ChunkOf(std::move(choice));
}

// What may be told of an output's text, of which the delta is the end: what may yet turn out to be
// a call is kept back.
std::string OpenAiReply::NewContent(size_t prompt, const v1::TokenDelta& delta) {
  if (request_.tool_names.empty()) return delta.text();
  const std::string& text = responses_[prompt].outputs()[delta.output_index()].text;
  Told& told = told_[IndexOf(prompt, delta.output_index())];
  const size_t begin = told.num_content;
  told.num_content = std::max(begin, NumContentBytes(text, begin));
  return text.substr(begin, told.num_content - begin);
}

ToolOutput OpenAiReply::Said(size_t prompt, size_t output) const {
  const auto& outputs = responses_[prompt].outputs();
  if (output >= outputs.size()) return {};
  if (request_.tool_names.empty()) return {outputs[output].text, {}};
  return SplitToolCalls(outputs[output].text, request_.tool_names);
}

Json OpenAiReply::ToolCallsJson(size_t index, const std::vector<ToolCall>& calls,
                                bool is_chunk) const {
  const std::string& request_id = responses_.front().accepted().request_id();
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Json call = is_chunk ? Json{{"index", i}} : Json::object();
    call["id"] = absl::StrCat("call_", request_id, "_", index, "_", i);
    call["type"] = "function";
    call["function"] = {{"name", ValidUtf8(calls[i].name)},
                        {"arguments", ValidUtf8(calls[i].arguments)}};
    list.push_back(std::move(call));
  }
  return list;
}

// What was kept back, and the end. A continued stream tells all ends again.
std::vector<Json> OpenAiReply::EndChunks(size_t prompt, const v1::OutputFinished& finished) {
  std::vector<Json> chunks;
  const size_t index = IndexOf(prompt, finished.output_index());
  Told& told = told_[index];
  if (std::exchange(told.ended, true)) return chunks;
  const auto add_delta = [&](Json delta) {
    chunks.push_back(ChunkOf({{"index", index},
                              {"delta", std::move(delta)},
                              {"logprobs", nullptr},
                              {"finish_reason", nullptr}}));
  };
  const ToolOutput said = Said(prompt, finished.output_index());
  const bool has_calls = !said.calls.empty();
  if (!request_.tool_names.empty() && said.content.size() > told.num_content) {
    add_delta({{"content", ValidUtf8(said.content.substr(told.num_content))}});
  }
  if (has_calls) add_delta({{"tool_calls", ToolCallsJson(index, said.calls, /*is_chunk=*/true)}});
  Json choice = {{"index", index}};
  if (request_.is_chat) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  AddEnd(finished, has_calls, choice);
  chunks.push_back(ChunkOf(std::move(choice)));
  return chunks;
}

std::vector<Json> OpenAiReply::Chunks(size_t prompt, const v1::GenerateEvent& event) {
  std::vector<Json> chunks;
  const auto open = [&](size_t output) {
    if (auto chunk = OpeningChunk(prompt, output)) chunks.push_back(*std::move(chunk));
  };
  if (event.has_accepted()) {
    for (int output = 0; output < num_outputs_; ++output) open(static_cast<size_t>(output));
  } else if (event.has_delta() &&
             event.delta().output_index() < static_cast<uint32_t>(num_outputs_)) {
    const std::string content = NewContent(prompt, event.delta());
    const bool tells = !content.empty() || !event.delta().logprobs().empty();
    if (tells) chunks.push_back(DeltaChunk(prompt, event.delta(), content));
  } else if (event.has_finished() &&
             event.finished().output_index() < static_cast<uint32_t>(num_outputs_)) {
    return EndChunks(prompt, event.finished());
  }
  return chunks;
}

Json OpenAiReply::Usage() const {
  int64_t num_prompt = 0, num_cached = 0, num_output = 0, num_guessed = 0, num_wrong = 0;
  for (const Response& response : responses_) {
    for (const ResponseOutput& output : response.outputs()) {
      if (!output.finished || !output.finished->has_usage()) continue;
      const v1::Usage& usage = output.finished->usage();
      num_prompt += usage.num_prompt_tokens();
      num_cached += usage.num_cached_prompt_tokens();
      num_output += usage.num_output_tokens();
      num_guessed += usage.num_guessed_tokens();
      num_wrong += usage.num_wrong_guesses();
    }
  }
  return {
      {"prompt_tokens", num_prompt},
      {"completion_tokens", num_output},
      {"total_tokens", num_prompt + num_output},
      {"prompt_tokens_details", {{"cached_tokens", num_cached}}},
      {"completion_tokens_details",
       {{"accepted_prediction_tokens", num_guessed}, {"rejected_prediction_tokens", num_wrong}}}};
}

Json OpenAiReply::UsageChunk() const {
  Json chunk = Envelope(request_.is_chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array();
  chunk["usage"] = Usage();
  return chunk;
}

Json OpenAiReply::LogFields() const {
  Json ids = Json::array(), reasons = Json::array(), first_token_ms = nullptr;
  int64_t num_prompt = 0, num_cached = 0, num_output = 0;
  absl::Time started = absl::InfiniteFuture(), first_token = absl::InfiniteFuture();
  for (const Response& response : responses_) {
    ids.push_back(response.accepted().request_id());
    num_prompt += response.accepted().num_prompt_tokens();
    num_output += response.num_output_tokens();
    started = std::min(started, response.started());
    if (response.num_output_tokens() > 0) {
      first_token = std::min(first_token, response.first_token());
    }
    for (const ResponseOutput& output : response.outputs()) {
      const bool has_ended = output.finished.has_value();
      reasons.push_back(has_ended ? Json(FinishReasonName(output.finished->reason())) : Json());
      if (has_ended) num_cached += output.finished->usage().num_cached_prompt_tokens();
    }
  }
  if (first_token < absl::InfiniteFuture()) {
    first_token_ms = std::round(absl::ToDoubleMilliseconds(first_token - started));
  }
  return {{"stream", request_.stream},           {"request_ids", std::move(ids)},
          {"prompt_tokens", num_prompt},         {"cached_tokens", num_cached},
          {"completion_tokens", num_output},     {"first_token_ms", std::move(first_token_ms)},
          {"finish_reasons", std::move(reasons)}};
}

Json OpenAiReply::Choice(size_t prompt, size_t output) const {
  const auto& outputs = responses_[prompt].outputs();
  static const ResponseOutput kNone;
  const ResponseOutput& given = output < outputs.size() ? outputs[output] : kNone;
  Json choice = {{"index", IndexOf(prompt, output)}};
  bool has_calls = false;
  if (request_.is_chat) {
    const ToolOutput said = Said(prompt, output);
    has_calls = !said.calls.empty();
    Json content = has_calls && said.content.empty() ? Json() : Json(ValidUtf8(said.content));
    choice["message"] = {
        {"role", "assistant"}, {"content", std::move(content)}, {"refusal", nullptr}};
    if (has_calls) {
      choice["message"]["tool_calls"] =
          ToolCallsJson(IndexOf(prompt, output), said.calls, /*is_chunk=*/false);
    }
  } else {
    choice["text"] = ValidUtf8(request_.echo ? echoed_[prompt].text + given.text : given.text);
  }
  choice["logprobs"] = nullptr;
  if (request_.wants_logprobs()) {
    size_t offset = 0;
    choice["logprobs"] = LogprobsOf(prompt, output, 0, offset);
  }
  AddEnd(given.finished.value_or(v1::OutputFinished()), has_calls, choice);
  return choice;
}

Json OpenAiReply::Whole() const {
  Json whole = Envelope(request_.is_chat ? "chat.completion" : "text_completion");
  whole["choices"] = Json::array();
  for (size_t prompt = 0; prompt < responses_.size(); ++prompt) {
    for (int output = 0; output < num_outputs_; ++output) {
      whole["choices"].push_back(Choice(prompt, static_cast<size_t>(output)));
    }
  }
  whole["usage"] = Usage();
  return whole;
}

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json OpenAiErrorJson(int status, absl::string_view message, absl::string_view code) {
  Json error = {{"message", ValidUtf8(message)}, {"type", ErrorType(status)}, {"param", nullptr}};
  error["code"] = code.empty() ? Json(nullptr) : Json(std::string(code));
  return {{"error", std::move(error)}};
}

HttpReply OpenAiError(int status, absl::string_view message, absl::string_view code) {
  HttpReply reply{.status = status,
                  .content_type = "application/json",
                  .body = DumpJson(OpenAiErrorJson(status, message, code)),
                  .allow = ""};
  if (status == 429 || status == 503) reply.retry_after_seconds = 1;
  return reply;
}

HttpReply OpenAiError(const absl::Status& status) {
  return OpenAiError(HttpStatusOf(status.code()), status.message());
}

std::string DumpJson(const Json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace lockstep
