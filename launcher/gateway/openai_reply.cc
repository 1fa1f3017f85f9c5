#include "launcher/gateway/openai_reply.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/steady_clock.h"
#include "launcher/cli/values.h"
#include "launcher/gateway/openai_error.h"
#include "launcher/gateway/openai_logprobs.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

using Json = OpenAiReply::Json;

// OpenAI tells no thoughts; DeepSeek, SGLang and llama.cpp have this name for them.
constexpr char kReasoning[] = "reasoning_content";

// Finish reason and, as vLLM has it, which of the request's own strings or tokens stopped it.
void AddEnd(const v1::OutputFinished& finished, const v1::StopOptions& stop, bool has_calls,
            Json& choice) {
  const bool ends_in_calls = has_calls && finished.reason() == v1::FINISH_REASON_STOP;
  choice["finish_reason"] = ends_in_calls ? "tool_calls" : FinishReasonName(finished.reason());
  if (finished.has_stop_string()) {
    choice["stop_reason"] = finished.stop_string();
  } else if (finished.has_stop_token_id() &&
             absl::c_linear_search(stop.stop_token_ids(), finished.stop_token_id())) {
    choice["stop_reason"] = finished.stop_token_id();
  } else {
    choice["stop_reason"] = nullptr;
  }
}

}  // namespace

OpenAiReply::OpenAiReply(const OpenAiRequest& request, size_t num_prompts, std::string model,
                         absl::Time created, std::vector<EchoedPrompt> echoed, AssistantForm form)
    : request_(request),
      form_(form),
      num_outputs_(std::clamp(request.num_outputs(), 1, kMaxOutputs)),
      model_(std::move(model)),
      created_(absl::ToUnixSeconds(created)),
      echoed_(std::move(echoed)),
      responses_(num_prompts, Response(SteadyNow())),
      told_(num_prompts * static_cast<size_t>(num_outputs_), {.text = NewText()}) {}

void OpenAiReply::Add(size_t prompt, const v1::GenerateEvent& event) {
  responses_[prompt].Add(event, SteadyNow());
}

AssistantText OpenAiReply::NewText() const {
  static const std::set<std::string> kNone;
  const bool is_apart = request_.reasoning != OpenAiRequest::Reasoning::kInContent;
  // A text that must be something else is no call, whatever it looks like.
  const v1::OutputConstraint& constraint = request_.options.constraint();
  const bool may_call =
      constraint.kind_case() == v1::OutputConstraint::KIND_NOT_SET || constraint.has_tool_calls();
  return AssistantText(form_, is_apart, may_call ? request_.tool_names : kNone);
}

bool OpenAiReply::TellsReasoning(const AssistantText::Piece& piece) const {
  return !piece.reasoning.empty() && request_.reasoning == OpenAiRequest::Reasoning::kApart;
}

const std::string& OpenAiReply::TextOf(size_t prompt, size_t output) const {
  static const std::string kNone;
  const auto& outputs = responses_[prompt].outputs();
  return output < outputs.size() && !request_.echoes_alone ? outputs[output].text : kNone;
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
  if (request_.include_usage) {
    chunk["usage"] = request_.continuous_usage ? UsageSoFar() : Json();
  }
  return chunk;
}

const std::vector<v1::Logprobs>& OpenAiReply::LogprobsTold(size_t prompt, size_t output) const {
  static const std::vector<v1::Logprobs> kNone;
  const auto& outputs = responses_[prompt].outputs();
  return output < outputs.size() && !request_.echoes_alone ? outputs[output].logprobs : kNone;
}

// Of an output's tokens. The first ones have the prompt's before them, if that is repeated. offset:
// the first one's, then the next one's.
Json OpenAiReply::LogprobsOf(size_t prompt, size_t output, bool are_first, size_t& offset) const {
  const std::vector<v1::Logprobs>& logprobs = LogprobsTold(prompt, output);
  if (request_.is_chat) return ChatLogprobs(logprobs);
  CompletionLogprobs lists(offset);
  if (are_first && request_.echo) {
    lists.AddFirst(echoed_[prompt].first_token);
    for (const v1::Logprobs& entry : responses_[prompt].prompt_logprobs()) lists.Add(entry);
  }
  for (const v1::Logprobs& entry : logprobs) lists.Add(entry);
  offset = lists.offset();
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

// Of a chat one field of its message, so that no client must look for two at a time; of a
// completion its text.
Json OpenAiReply::TextChunk(size_t index, const char* field, const std::string& text) const {
  Json choice = {{"index", index}};
  if (request_.is_chat) {
    choice["delta"] = {{field, ValidUtf8(text)}};
  } else {
    choice["text"] = ValidUtf8(text);
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return ChunkOf(std::move(choice));
}

// What may be told of an output's text by now, with the log-probabilities of the delta's tokens.
std::vector<Json> OpenAiReply::DeltaChunks(size_t prompt, const v1::TokenDelta& delta) {
  const size_t index = IndexOf(prompt, delta.output_index());
  Told& told = told_[index];
  const bool has_logprobs = request_.wants_logprobs() && !delta.logprobs().empty();
  std::vector<Json> chunks =
      PieceChunks(index, told.text.Read(TextOf(prompt, delta.output_index()), /*has_ended=*/false));
  if (chunks.empty() && has_logprobs) chunks.push_back(TextChunk(index, "content", ""));
  if (has_logprobs) {
    chunks.back()["choices"][0]["logprobs"] =
        LogprobsOf(prompt, delta.output_index(), !told.has_logprobs, told.offset);
    told.has_logprobs = true;
    responses_[prompt].ForgetLogprobs(delta.output_index());
  }
  return chunks;
}

std::vector<Json> OpenAiReply::PieceChunks(size_t index, const AssistantText::Piece& piece) const {
  std::vector<Json> chunks;
  if (TellsReasoning(piece)) chunks.push_back(TextChunk(index, kReasoning, piece.reasoning));
  if (!piece.content.empty()) chunks.push_back(TextChunk(index, "content", piece.content));
  if (!piece.calls.empty()) {
    chunks.push_back(
        ChunkOf({{"index", index},
                 {"delta", {{"tool_calls", ToolCallsJson(index, piece.calls, /*is_chunk=*/true)}}},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr}}));
  }
  return chunks;
}

Json OpenAiReply::ToolCallsJson(size_t index, const std::vector<ToolCall>& calls,
                                bool is_chunk) const {
  const std::string& request_id = responses_.front().accepted().request_id();
  Json list = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    Json call = is_chunk ? Json{{"index", i}} : Json::object();
    call["id"] = ToolCallId(request_id, index, i, form_.has_short_ids);
    call["type"] = "function";
    call["function"] = {{"name", ValidUtf8(calls[i].name)},
                        {"arguments", ValidUtf8(calls[i].arguments)}};
    list.push_back(std::move(call));
  }
  return list;
}

// Whatever the token is that is not told.
v1::OutputFinished OpenAiReply::EndOf(const v1::OutputFinished& finished) const {
  if (!request_.echoes_alone) return finished;
  v1::OutputFinished end;
  end.set_reason(v1::FINISH_REASON_LENGTH);
  return end;
}

// What was kept back, and the end. A continued stream tells all ends again.
std::vector<Json> OpenAiReply::EndChunks(size_t prompt, const v1::OutputFinished& finished) {
  const size_t index = IndexOf(prompt, finished.output_index());
  Told& told = told_[index];
  if (std::exchange(told.ended, true)) return {};
  const AssistantText::Piece rest =
      told.text.Read(TextOf(prompt, finished.output_index()), /*has_ended=*/true);
  std::vector<Json> chunks = PieceChunks(index, rest);
  Json choice = {{"index", index}};
  if (request_.is_chat) {
    choice["delta"] = Json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  AddEnd(EndOf(finished), request_.options.stop(), !rest.calls.empty(), choice);
  chunks.push_back(ChunkOf(std::move(choice)));
  return chunks;
}

// An output opens with its first token, as clients take what opens it for that when they measure.
std::vector<Json> OpenAiReply::Chunks(size_t prompt, const v1::GenerateEvent& event) {
  if (!event.has_delta() && !event.has_finished()) return {};
  const uint32_t output =
      event.has_delta() ? event.delta().output_index() : event.finished().output_index();
  if (output >= static_cast<uint32_t>(num_outputs_)) return {};
  std::vector<Json> chunks;
  if (auto opening = OpeningChunk(prompt, output)) chunks.push_back(*std::move(opening));
  std::vector<Json> told =
      event.has_delta() ? DeltaChunks(prompt, event.delta()) : EndChunks(prompt, event.finished());
  absl::c_move(told, std::back_inserter(chunks));
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
      num_output += request_.echoes_alone ? 0 : usage.num_output_tokens();
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

Json OpenAiReply::UsageSoFar() const {
  int64_t num_prompt = 0, num_output = 0;
  for (const Response& response : responses_) {
    num_prompt += response.accepted().num_prompt_tokens();
    num_output += request_.echoes_alone ? 0 : response.num_output_tokens();
  }
  return {{"prompt_tokens", num_prompt},
          {"completion_tokens", num_output},
          {"total_tokens", num_prompt + num_output}};
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

// Of a chat one entry at a time: they may be most of an answer.
std::string OpenAiReply::LogprobsText(size_t prompt, size_t output) const {
  if (!request_.wants_logprobs()) return "null";
  size_t offset = 0;
  if (!request_.is_chat) return DumpJson(LogprobsOf(prompt, output, /*are_first=*/true, offset));
  std::string text = R"({"content":[)";
  for (const v1::Logprobs& entry : LogprobsTold(prompt, output)) {
    absl::StrAppend(&text, text.back() == '[' ? "" : ",", DumpJson(ChatLogprob(entry)));
  }
  return text + "]}";
}

std::string OpenAiReply::ChoiceText(size_t prompt, size_t output) const {
  const auto& outputs = responses_[prompt].outputs();
  static const ResponseOutput kNone;
  const ResponseOutput& given = output < outputs.size() ? outputs[output] : kNone;
  Json choice = {{"index", IndexOf(prompt, output)}};
  bool has_calls = false;
  if (request_.is_chat) {
    const AssistantText::Piece said = NewText().Read(given.text, /*has_ended=*/true);
    has_calls = !said.calls.empty();
    const bool tells_reasoning = TellsReasoning(said);
    const bool says_else = has_calls || tells_reasoning;
    Json content = says_else && said.content.empty() ? Json() : Json(ValidUtf8(said.content));
    choice["message"] = {
        {"role", "assistant"}, {"content", std::move(content)}, {"refusal", nullptr}};
    if (tells_reasoning) choice["message"][kReasoning] = ValidUtf8(said.reasoning);
    if (has_calls) {
      choice["message"]["tool_calls"] =
          ToolCallsJson(IndexOf(prompt, output), said.calls, /*is_chunk=*/false);
    }
  } else {
    const std::string& text = TextOf(prompt, output);
    choice["text"] = ValidUtf8(request_.echo ? echoed_[prompt].text + text : text);
  }
  AddEnd(EndOf(given.finished.value_or(v1::OutputFinished())), request_.options.stop(), has_calls,
         choice);
  std::string text = DumpJson(choice);
  text.pop_back();  // its }
  absl::StrAppend(&text, ",\"logprobs\":", LogprobsText(prompt, output), "}");
  return text;
}

std::string OpenAiReply::WholeText() const {
  std::string text = DumpJson(Envelope(request_.is_chat ? "chat.completion" : "text_completion"));
  text.pop_back();  // its }
  text += ",\"choices\":[";
  for (size_t prompt = 0; prompt < responses_.size(); ++prompt) {
    for (int output = 0; output < num_outputs_; ++output) {
      absl::StrAppend(&text, prompt + static_cast<size_t>(output) == 0 ? "" : ",",
                      ChoiceText(prompt, static_cast<size_t>(output)));
    }
  }
  absl::StrAppend(&text, "],\"usage\":", DumpJson(Usage()), "}");
  return text;
}

}  // namespace lockstep
