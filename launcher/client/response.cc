#include "launcher/client/response.h"

#include <algorithm>

#include "launcher/cli/values.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

Json LogprobJson(const v1::TokenLogprob& token) {
  return {{"token_id", token.token_id()},
          {"logprob", token.logprob()},
          {"text", ValidUtf8(token.text())}};
}

Json LogprobsJson(const v1::Logprobs& logprobs) {
  Json entry = LogprobJson(logprobs.token());
  entry["top"] = Json::array();
  for (const v1::TokenLogprob& token : logprobs.top()) entry["top"].push_back(LogprobJson(token));
  return entry;
}

Json LogprobListJson(const std::vector<v1::Logprobs>& list) {
  Json entries = Json::array();
  for (const v1::Logprobs& logprobs : list) entries.push_back(LogprobsJson(logprobs));
  return entries;
}

Json OutputJson(size_t index, const ResponseOutput& output) {
  Json json = {{"index", index}, {"text", ValidUtf8(output.text)}, {"token_ids", output.token_ids}};
  if (!output.logprobs.empty()) json["logprobs"] = LogprobListJson(output.logprobs);
  if (!output.finished) return json;
  json["finish_reason"] = FinishReasonName(output.finished->reason());
  if (output.finished->has_stop_token_id())
    json["stop_token_id"] = output.finished->stop_token_id();
  if (output.finished->has_stop_string()) json["stop_string"] = output.finished->stop_string();
  return json;
}

}  // namespace

std::string FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_ABORTED:
      return "aborted";
    case v1::FINISH_REASON_DEADLINE:
      return "deadline";
    default:
      return "unknown";
  }
}

ResponseOutput& Response::OutputAt(uint32_t index) {
  index = std::min(index, uint32_t{kMaxOutputs - 1});
  if (index >= outputs_.size()) outputs_.resize(index + 1);
  return outputs_[index];
}

void Response::AddDelta(const v1::TokenDelta& delta, absl::Time received) {
  ResponseOutput& output = OutputAt(delta.output_index());
  output.text += delta.text();
  output.token_ids.insert(output.token_ids.end(), delta.token_ids().begin(),
                          delta.token_ids().end());
  output.logprobs.insert(output.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
  if (delta.token_ids().empty()) return;
  num_output_tokens_ += delta.token_ids_size();
  if (first_token_ == absl::InfinitePast()) first_token_ = received;
  last_token_ = received;
}

void Response::Add(const v1::GenerateEvent& event, absl::Time received) {
  switch (event.event_case()) {
    case v1::GenerateEvent::kAccepted:
      accepted_ = event.accepted();
      break;
    case v1::GenerateEvent::kPromptLogprobs:
      // Those of a continued stream begin again.
      if (event.prompt_logprobs().first_position() <= 1) prompt_logprobs_.clear();
      prompt_logprobs_.insert(prompt_logprobs_.end(), event.prompt_logprobs().logprobs().begin(),
                              event.prompt_logprobs().logprobs().end());
      break;
    case v1::GenerateEvent::kDelta:
      AddDelta(event.delta(), received);
      break;
    case v1::GenerateEvent::kFinished:
      OutputAt(event.finished().output_index()).finished = event.finished();
      break;
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;  // a newer server's event
  }
}

bool Response::complete() const {
  // Usage comes with the last event.
  return std::any_of(outputs_.begin(), outputs_.end(), [](const ResponseOutput& output) {
    return output.finished && output.finished->has_usage();
  });
}

v1::AttachRequest Response::Continuation() const {
  v1::AttachRequest request;
  request.set_request_id(accepted_.request_id());
  for (const ResponseOutput& output : outputs_) {
    v1::ReceivedOutput& received = *request.add_received();
    received.mutable_token_ids()->Add(output.token_ids.begin(), output.token_ids.end());
    received.set_num_text_bytes(static_cast<int64_t>(output.text.size()));
  }
  return request;
}

Json Response::ToJson() const {
  Json json = {{"request_id", accepted_.request_id()},
               {"seed", accepted_.seed()},
               {"num_prompt_tokens", accepted_.num_prompt_tokens()}};
  if (!prompt_logprobs_.empty()) json["prompt_logprobs"] = LogprobListJson(prompt_logprobs_);
  json["outputs"] = Json::array();
  for (size_t i = 0; i < outputs_.size(); ++i)
    json["outputs"].push_back(OutputJson(i, outputs_[i]));
  for (const ResponseOutput& output : outputs_) {
    if (!output.finished || !output.finished->has_usage()) continue;
    const v1::Usage& usage = output.finished->usage();
    json["usage"] = {{"num_prompt_tokens", usage.num_prompt_tokens()},
                     {"num_cached_prompt_tokens", usage.num_cached_prompt_tokens()},
                     {"num_output_tokens", usage.num_output_tokens()},
                     {"num_guessed_tokens", usage.num_guessed_tokens()},
                     {"num_wrong_guesses", usage.num_wrong_guesses()}};
  }
  if (num_output_tokens_ > 0) {
    json["timing"] = {{"ttft_ms", absl::ToDoubleMilliseconds(first_token_ - started_)},
                      {"total_ms", absl::ToDoubleMilliseconds(last_token_ - started_)}};
  }
  return json;
}

}  // namespace lockstep
