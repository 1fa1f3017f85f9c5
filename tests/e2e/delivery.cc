#include "tests/e2e/delivery.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lockstep::testing {

void Delivery::Add(const v1::GenerateEvent& event) {
  if (event.has_accepted() == accepted.has_value()) {
    problems.push_back("not exactly one PromptAccepted, before all else");
  }
  if (complete() && accepted) problems.push_back("an event after the last");
  switch (event.event_case()) {
    case v1::GenerateEvent::kAccepted:
      accepted = event.accepted();
      break;
    case v1::GenerateEvent::kPromptLogprobs:
      AddPromptLogprobs(event.prompt_logprobs());
      break;
    case v1::GenerateEvent::kDelta:
      AddDelta(event.delta());
      break;
    case v1::GenerateEvent::kFinished:
      AddFinish(event.finished());
      break;
    case v1::GenerateEvent::EVENT_NOT_SET:
      problems.push_back("an empty event");
  }
}

void Delivery::AddPromptLogprobs(const v1::PromptLogprobs& given) {
  if (given.first_position() != static_cast<int>(prompt_logprobs.size()) + 1) {
    problems.push_back(absl::StrCat("prompt logprobs from position ", given.first_position(),
                                    " after ", prompt_logprobs.size(), " of them"));
  }
  if (num_tokens() > 0) problems.push_back("prompt logprobs after a token");
  prompt_logprobs.insert(prompt_logprobs.end(), given.logprobs().begin(), given.logprobs().end());
}

void Delivery::AddDelta(const v1::TokenDelta& delta) {
  Output& output = outputs[delta.output_index()];
  if (output.finished) problems.push_back("a delta after its output's end");
  if (delta.token_ids().empty() && delta.text().empty()) problems.push_back("an empty delta");
  if (delta.logprobs_size() != 0 && delta.logprobs_size() != delta.token_ids_size()) {
    problems.push_back(absl::StrCat("a delta of ", delta.token_ids_size(), " tokens has ",
                                    delta.logprobs_size(), " logprobs"));
  }
  output.token_ids.insert(output.token_ids.end(), delta.token_ids().begin(),
                          delta.token_ids().end());
  output.text += delta.text();
  output.logprobs.insert(output.logprobs.end(), delta.logprobs().begin(), delta.logprobs().end());
  output.parts.emplace_back(output.token_ids.size(), output.text.size());
}

void Delivery::AddFinish(const v1::OutputFinished& finished) {
  Output& output = outputs[finished.output_index()];
  if (output.finished) problems.push_back("an output finished twice");
  output.finished = finished;
  if (finished.has_usage() != complete())
    problems.push_back("usage not with the last finish alone");
}

v1::AttachRequest Delivery::Attach(const std::map<uint32_t, size_t>& num_parts) {
  v1::AttachRequest request;
  request.set_request_id(accepted->request_id());
  for (int i = 0; i < accepted->num_outputs(); ++i) request.add_received();
  bool has_tokens = false;
  for (auto& [index, output] : outputs) {
    output.finished.reset();
    const auto given = num_parts.find(index);
    output.parts.resize(given == num_parts.end() ? 0
                                                 : std::min(given->second, output.parts.size()));
    const auto [num_ids, num_bytes] =
        output.parts.empty() ? std::pair<size_t, size_t>() : output.parts.back();
    output.token_ids.resize(num_ids);
    output.text.resize(num_bytes);
    output.logprobs.resize(std::min(output.logprobs.size(), num_ids));
    has_tokens = has_tokens || num_ids > 0;
    v1::ReceivedOutput& received = *request.mutable_received(static_cast<int>(index));
    received.mutable_token_ids()->Add(output.token_ids.begin(), output.token_ids.end());
    received.set_num_text_bytes(static_cast<int64_t>(num_bytes));
  }
  if (!has_tokens) prompt_logprobs.clear();
  accepted.reset();
  attached = true;
  return request;
}

int Delivery::num_tokens() const {
  size_t num_tokens = 0;
  for (const auto& [index, output] : outputs) num_tokens += output.token_ids.size();
  return static_cast<int>(num_tokens);
}

int Delivery::num_cached() const {
  int num_cached = 0;
  for (const auto& [index, output] : outputs) {
    if (output.finished) num_cached += output.finished->usage().num_cached_prompt_tokens();
  }
  return num_cached;
}

bool Delivery::complete() const {
  const auto num_finished = std::count_if(outputs.begin(), outputs.end(),
                                          [](const auto& each) { return each.second.finished; });
  return accepted && num_finished == accepted->num_outputs();
}

bool Delivery::was_refused() const {
  return !accepted && status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
         absl::StrContains(status.error_message(), "queue is full");
}

namespace {

template <typename List>
bool BeginsLike(const List& whole, const List& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

std::vector<std::string> Bits(const std::vector<v1::Logprobs>& logprobs) {
  std::vector<std::string> bits;
  for (const v1::Logprobs& each : logprobs) bits.push_back(each.SerializeAsString());
  return bits;
}

bool EndedByItself(const Delivery::Output& output) {
  return output.finished && (output.finished->reason() == v1::FINISH_REASON_STOP ||
                             output.finished->reason() == v1::FINISH_REASON_LENGTH);
}

// Of a text that is cut off, what is not held back as a stop string's beginning, or half a
// character's: when an output ends early, that comes first, and perhaps nothing after it.
std::string CertainPart(const v1::GenerateRequest& request, const std::string& text) {
  size_t num_held = 3;
  for (const std::string& stop : request.stop().stop_strings()) {
    num_held = std::max(num_held, stop.size() - 1);
  }
  return text.substr(0, text.size() - std::min(text.size(), num_held));
}

Problems CompareOutputs(const v1::GenerateRequest& request, const Delivery::Output& truth,
                        const Delivery::Output& output) {
  Problems problems;
  const bool whole = EndedByItself(output);
  const auto check = [&](bool same, const char* what) {
    if (!same) problems.push_back(absl::StrCat(what, whole ? " differ" : " do not begin so"));
  };
  check(whole ? truth.token_ids == output.token_ids : BeginsLike(truth.token_ids, output.token_ids),
        "tokens");
  const auto bits = Bits(output.logprobs);
  const auto true_bits = Bits(truth.logprobs);
  check(whole ? true_bits == bits : BeginsLike(true_bits, bits), "logprobs");
  // Who ends an output early gets half a character as U+FFFD: checked as text of its tokens.
  if (whole || !output.finished) {
    check(whole ? truth.text == output.text
                : BeginsLike(truth.text, CertainPart(request, output.text)),
          "texts");
  }
  if (!whole || !truth.finished) return problems;
  v1::OutputFinished finished = *output.finished;
  v1::OutputFinished true_finished = *truth.finished;
  finished.clear_usage();
  true_finished.clear_usage();
  check(finished.SerializeAsString() == true_finished.SerializeAsString(), "finishes");
  return problems;
}

}  // namespace

Problems Compare(const v1::GenerateRequest& request, const Delivery& truth,
                 const Delivery& delivery) {
  if (!truth.status.ok()) return {"alone it failed: " + truth.status.error_message()};
  Problems problems;
  if (!BeginsLike(Bits(truth.prompt_logprobs), Bits(delivery.prompt_logprobs))) {
    problems.push_back("prompt logprobs differ");
  }
  for (const auto& [index, output] : delivery.outputs) {
    const auto found = truth.outputs.find(index);
    if (found == truth.outputs.end()) {
      problems.push_back(absl::StrCat("there is no output ", index));
      continue;
    }
    for (const std::string& problem : CompareOutputs(request, found->second, output)) {
      problems.push_back(absl::StrCat("output ", index, ": ", problem));
    }
  }
  return problems;
}

}  // namespace lockstep::testing
