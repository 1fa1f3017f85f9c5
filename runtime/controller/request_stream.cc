#include "runtime/controller/request_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace lockstep {
namespace {

v1::FinishReason ToProto(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case engine::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case engine::FinishReason::kAborted:
    case engine::FinishReason::kError:
      return v1::FINISH_REASON_ABORTED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

grpc::Status NoNumbers(const std::string& request_id) {
  return grpc::Status(
      grpc::StatusCode::INTERNAL,
      absl::StrCat("request ", request_id,
                   ": the model's logits are no numbers: its weights hold some, or "
                   "activations have left the range of f16 (--dtype bf16 or f32 has "
                   "more)"));
}

}  // namespace

RequestStream::Output::Output(const Tokenizer* tokenizer, const StreamSpec& spec, int index)
    : matcher(spec.text.stop_strings, spec.text.include_stop_string) {
  if (!spec.received.empty()) num_received_text_bytes = spec.received[index].num_text_bytes;
  if (tokenizer == nullptr) return;
  detokenizer.emplace(*tokenizer, spec.text.include_special_tokens, spec.text.is_continuation);
}

RequestStream::RequestStream(StreamSpec spec, const Tokenizer* tokenizer,
                             std::shared_ptr<EventWriter> writer)
    : spec_(std::move(spec)),
      tokenizer_(tokenizer),
      writer_(std::move(writer)),
      num_unfinished_(spec_.num_outputs) {
  outputs_.reserve(spec_.num_outputs);
  for (int i = 0; i < spec_.num_outputs; ++i) outputs_.emplace_back(tokenizer_, spec_, i);
}

void RequestStream::Accept() {
  v1::GenerateEvent event;
  v1::PromptAccepted& accepted = *event.mutable_accepted();
  accepted.set_request_id(spec_.request_id);
  accepted.set_num_prompt_tokens(spec_.num_prompt_tokens);
  accepted.set_seed(spec_.seed);
  accepted.set_max_tokens(spec_.max_tokens);
  accepted.set_num_outputs(spec_.num_outputs);
  accepted.set_attachable(spec_.journal_entry != nullptr && spec_.journal_entry->Take());
  writer_->Write(std::move(event));
}

RequestStream::Next RequestStream::Deliver(const engine::EngineEvent& event) {
  const uint32_t index = event.sequence_index;
  LS_CHECK_LT(index, outputs_.size());
  Output& output = outputs_[index];
  if (output.finished) return Next::kContinue;  // tokens past a stop string
  if (!num_cached_prompt_tokens_ && event.num_emitted == 0 && (event.token || event.finish)) {
    num_cached_prompt_tokens_ = static_cast<int32_t>(event.num_cached_prompt_tokens);
  }
  if (event.finish == engine::FinishReason::kError) {  // of one output: there is no use in others
    writer_->Close(NoNumbers(spec_.request_id));
    return Next::kCancel;
  }
  bool written = WritePromptLogprobs(event.prompt_logprobs);
  if (event.num_emitted > 0) written = WriteReceived(index, event) && written;
  if (event.token) written = WriteToken(index, event) && written;
  if (output.matcher.matched()) {
    written = WriteFinish(index, v1::FINISH_REASON_STOP, -1) && written;
    if (!written) return Next::kCancel;
    return event.finish ? Next::kContinue : Next::kStopOutput;
  }
  if (event.finish) {
    deadline_passed_ = deadline_passed_ || *event.finish == engine::FinishReason::kDeadline;
    written = WriteFinish(index, ToProto(*event.finish), event.stop_token_id) && written;
  }
  return written ? Next::kContinue : Next::kCancel;
}

void RequestStream::EndAll(v1::FinishReason reason, const grpc::Status& status) {
  for (uint32_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i].finished && status.ok()) WriteFinish(i, reason, -1);
  }
  writer_->Close(status);
}

bool RequestStream::WritePromptLogprobs(const std::vector<LogprobInfo>& infos) {
  const bool seen = std::any_of(spec_.received.begin(), spec_.received.end(),
                                [](const ReceivedOutput& each) { return !each.token_ids.empty(); });
  if (infos.empty() || seen) return true;
  v1::GenerateEvent event;
  v1::PromptLogprobs& logprobs = *event.mutable_prompt_logprobs();
  logprobs.set_first_position(next_prompt_position_);
  for (const LogprobInfo& info : infos) {
    if (next_prompt_position_ >= static_cast<int32_t>(spec_.prompt.size())) break;
    FillLogprobs(spec_.prompt[next_prompt_position_++], info, logprobs.add_logprobs());
  }
  return writer_->Write(std::move(event));
}

// What the client has of the output's tokens, as if they came now: text that it lacks.
bool RequestStream::WriteReceived(uint32_t index, const engine::EngineEvent& event) {
  Output& output = outputs_[index];
  const std::vector<int32_t>& ids = spec_.received[index].token_ids;
  LS_CHECK_LE(event.num_emitted, ids.size());
  std::string text;
  for (uint32_t i = 0; i < event.num_emitted && !output.matcher.matched(); ++i) {
    const bool is_last = i + 1 == event.num_emitted;
    text += TextOf(output, ids[i], is_last && event.finish == engine::FinishReason::kStop);
    ++output.num_tokens;
  }
  return WriteText(index, Unseen(output, text));
}

bool RequestStream::WriteToken(uint32_t index, const engine::EngineEvent& engine_event) {
  Output& output = outputs_[index];
  const engine::SampledToken& sampled = *engine_event.token;
  v1::GenerateEvent event;
  v1::TokenDelta& delta = *event.mutable_delta();
  delta.set_output_index(index);
  delta.set_text(Unseen(
      output, TextOf(output, sampled.token, engine_event.finish == engine::FinishReason::kStop)));
  ++output.num_tokens;
  num_guessed_tokens_ += engine_event.was_guessed ? 1 : 0;
  num_wrong_guesses_ += static_cast<int32_t>(engine_event.num_wrong_guesses);
  delta.add_token_ids(sampled.token);
  if (spec_.logprobs && sampled.logprobs) {
    FillLogprobs(sampled.token, *sampled.logprobs, delta.add_logprobs());
  }
  return writer_->Write(std::move(event));
}

// The text that became certain with this token. The token that stops the output is not part of its
// text, unless asked.
std::string RequestStream::TextOf(Output& output, int32_t token, bool stops) const {
  if (!output.detokenizer) return "";
  std::string certain;
  const bool is_outside = spec_.text.is_constrained && tokenizer_->IsSpecial(token);
  const bool shows_stop = spec_.text.include_stop_string && !is_outside;
  if (!stops || shows_stop) certain = output.detokenizer->Add(token);
  return output.matcher.Add(certain, /*may_match=*/output.num_tokens >= spec_.text.min_tokens);
}

// The text still held back, then the finish; with the last output, usage and the end of the call.
bool RequestStream::WriteFinish(uint32_t index, v1::FinishReason reason, int32_t stop_token_id) {
  Output& output = outputs_[index];
  std::string rest;
  const bool is_cut = reason == v1::FINISH_REASON_ABORTED || reason == v1::FINISH_REASON_DEADLINE;
  if (output.detokenizer && !output.matcher.matched() && is_cut) {
    // Half a character, which is shown as U+FFFD, is no stop string.
    rest = output.matcher.Finish();
    rest += output.detokenizer->Finish();
  } else if (output.detokenizer && !output.matcher.matched()) {
    rest = output.matcher.Add(output.detokenizer->Finish());
    rest += output.matcher.Finish();
    if (output.matcher.matched()) reason = v1::FINISH_REASON_STOP;
  }
  const bool written = WriteText(index, Unseen(output, rest));
  output.finished = true;
  --num_unfinished_;

  v1::GenerateEvent event;
  v1::OutputFinished& finished = *event.mutable_finished();
  finished.set_output_index(index);
  finished.set_reason(reason);
  if (output.matcher.matched()) {
    finished.set_stop_string(*output.matcher.matched());
  } else if (reason == v1::FINISH_REASON_STOP && stop_token_id >= 0) {
    finished.set_stop_token_id(stop_token_id);
  }
  if (num_unfinished_ == 0) {
    v1::Usage& usage = *finished.mutable_usage();
    usage.set_num_prompt_tokens(spec_.num_prompt_tokens);
    usage.set_num_cached_prompt_tokens(num_cached_prompt_tokens_.value_or(0));
    int32_t num_output_tokens = 0;
    for (const Output& each : outputs_) num_output_tokens += each.num_tokens;
    usage.set_num_output_tokens(num_output_tokens);
    usage.set_num_guessed_tokens(num_guessed_tokens_);
    usage.set_num_wrong_guesses(num_wrong_guesses_);
  }
  const bool finish_written = writer_->Write(std::move(event)) && written;
  if (num_unfinished_ == 0) writer_->Close(StatusAtEnd());
  return finish_written;
}

bool RequestStream::WriteText(uint32_t index, const std::string& text) {
  if (text.empty()) return true;
  v1::GenerateEvent event;
  event.mutable_delta()->set_output_index(index);
  event.mutable_delta()->set_text(text);
  return writer_->Write(std::move(event));
}

// What follows the bytes the client has. It counts whole characters; should it not, the rest of the
// one it cut goes too.
std::string RequestStream::Unseen(Output& output, const std::string& text) {
  const int64_t num_seen = output.num_received_text_bytes - output.num_text_bytes;
  output.num_text_bytes += static_cast<int64_t>(text.size());
  if (num_seen <= 0) return text;
  size_t begin = std::min(text.size(), static_cast<size_t>(num_seen));
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  return text.substr(begin);
}

void RequestStream::FillLogprobs(int32_t token, const LogprobInfo& info,
                                 v1::Logprobs* logprobs) const {
  const auto fill = [this](int32_t id, float logprob, v1::TokenLogprob* entry) {
    entry->set_token_id(id);
    entry->set_logprob(logprob);
    if (tokenizer_ != nullptr) entry->set_text(tokenizer_->TokenBytes(id));
  };
  fill(token, info.logprob, logprobs->mutable_token());
  for (const TokenLogprob& top : info.top) fill(top.token, top.logprob, logprobs->add_top());
}

grpc::Status RequestStream::StatusAtEnd() const {
  if (!deadline_passed_) return grpc::Status::OK;
  return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED,
                      absl::StrCat("request ", spec_.request_id, ": its deadline passed"));
}

}  // namespace lockstep
