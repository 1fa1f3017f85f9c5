#include "tests/e2e/any_case.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/e2e/any_request.h"
#include "tests/e2e/delivery_checks.h"
#include "tests/e2e/stream_call.h"
#include "tests/e2e/text_oracle.h"

namespace lockstep::testing {
namespace {

using grpc::StatusCode;

// Some part of the text, of whole characters.
std::string AnyPart(Dice& dice, const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  const int last = static_cast<int>(starts.size()) - 1;
  const int begin = dice.Pick(0, last - 1);
  const int end = dice.Pick(begin + 1, std::min(last, begin + 20));
  return text.substr(starts[begin], starts[end] - starts[begin]);
}

}  // namespace

AnyCase::AnyCase(const Connection& server, const ServerFacts& facts, uint64_t seed)
    : server_(server), facts_(facts), dice_(seed) {}

CaseResult AnyCase::Run() {
  using Story = std::pair<const char*, void (AnyCase::*)()>;
  const Story kStories[] = {{"take all", &AnyCase::TakeAll},
                            {"take all", &AnyCase::TakeAll},
                            {"take all", &AnyCase::TakeAll},
                            {"take all", &AnyCase::TakeAll},
                            {"stop at its own text", &AnyCase::StopAtItsOwnText},
                            {"read its output as prompt", &AnyCase::ReadItsOutputAsPrompt},
                            {"leave", &AnyCase::Leave},
                            {"run late", &AnyCase::RunLate},
                            {"read slowly", &AnyCase::ReadSlowly},
                            {"abort", &AnyCase::AbortIt},
                            {"attach", &AnyCase::AttachToIt},
                            {"attach from elsewhere", &AnyCase::AttachFromElsewhere},
                            {"return after the end", &AnyCase::ReturnAfterTheEnd},
                            {"send twice", &AnyCase::SendTwice},
                            {"send wrong", &AnyCase::SendWrong},
                            {"send wrong", &AnyCase::SendWrong},
                            {"send wrong", &AnyCase::SendWrong},
                            {"convert text", &AnyCase::ConvertText}};
  Story story = dice_.Of(kStories);
  // Of two streams of one request either may be the first to come back.
  const bool has_two =
      story.second == &AnyCase::AttachFromElsewhere || story.second == &AnyCase::SendTwice;
  if (facts_.may_restart && has_two) story = kStories[0];
  result_.story = story.first;
  (this->*story.second)();
  return std::move(result_);
}

void AnyCase::Check(bool holds, const std::string& what) {
  if (!holds) result_.problems.push_back(what);
}

// --- calls ---

void AnyCase::Receive(const Request& request, const Habits& habits, Delivery& delivery) {
  do {
    delivery.status =
        ReadStream(server_, request, habits.timeout,
                   [&](const auto& event, auto& call) { Take(event, call, habits, delivery); });
  } while (IsServerGone(delivery) && !delivery.accepted);
  GoOn(habits, delivery);
}

void AnyCase::Receive(const v1::AttachRequest& attach, const Habits& habits, Delivery& delivery) {
  do {
    delivery.status =
        ReadStream(server_, attach, habits.timeout,
                   [&](const auto& event, auto& call) { Take(event, call, habits, delivery); });
  } while (IsServerGone(delivery) && !delivery.accepted);
  GoOn(habits, delivery);
}

// Where the server died and comes again, from all that was heard.
void AnyCase::GoOn(const Habits& habits, Delivery& delivery) {
  if (!IsServerGone(delivery)) return Count(delivery);
  std::map<uint32_t, size_t> all;
  for (const auto& [index, output] : delivery.outputs) all[index] = output.parts.size();
  Receive(delivery.Attach(all), habits, delivery);
}

bool AnyCase::IsServerGone(const Delivery& delivery) {
  const bool gone =
      facts_.may_restart && delivery.status.error_code() == grpc::StatusCode::UNAVAILABLE;
  if (gone) absl::SleepFor(absl::Milliseconds(100));
  return gone;
}

void AnyCase::Take(const v1::GenerateEvent& event, grpc::ClientContext& context,
                   const Habits& habits, Delivery& delivery) {
  delivery.Add(event);
  if (habits.on_event) habits.on_event(delivery);
  const int limit = habits.cancel_after_tokens;
  if (limit >= 0 && delivery.num_tokens() >= limit) context.TryCancel();
  absl::SleepFor(habits.pause);
}

void AnyCase::Count(const Delivery& delivery) {
  const StatusCode code = delivery.status.error_code();
  const bool unheard = code == StatusCode::DEADLINE_EXCEEDED || code == StatusCode::CANCELLED;
  ++(delivery.accepted ? result_.num_accepted
     : unheard         ? result_.num_unknown
                       : result_.num_refused);
  result_.queue_was_full = result_.queue_was_full || delivery.was_refused();
}

Delivery AnyCase::Generate(const Request& request, const Habits& habits) {
  Delivery delivery;
  Receive(request, habits, delivery);
  return delivery;
}

void AnyCase::Observe(const Request& request, Delivery delivery) {
  const auto prompt = PromptOf(facts_, request);
  for (const std::string& problem : CheckDelivery(facts_, request, *prompt, delivery)) {
    result_.problems.push_back(problem);
  }
  if (delivery.accepted) result_.observed.push_back({request, *prompt, std::move(delivery)});
}

void AnyCase::ExpectRefusal(const grpc::Status& status, StatusCode code,
                            const std::vector<std::string>& named) {
  Check(status.error_code() == code, absl::StrCat("status ", status.error_code(), " (",
                                                  status.error_message(), "), expected ", code));
  for (const std::string& word : named) {
    Check(absl::StrContains(status.error_message(), word),
          absl::StrCat("\"", status.error_message(), "\" does not name \"", word, "\""));
  }
  Check(!absl::StrContains(status.error_message(), "\n"), "the message has several lines");
}

// --- stories ---

void AnyCase::TakeAll() {
  Request request = AnyRequest(dice_, facts_);
  const bool is_new_tenant = dice_.OneIn(4);
  if (is_new_tenant) request.set_cache_salt(absl::StrCat("tenant ", dice_.Bits()));
  Delivery delivery = Generate(request, {});
  Check(!is_new_tenant || delivery.num_cached() == 0, "found cached what only others computed");
  Check(delivery.status.ok() || delivery.was_refused(),
        "failed: " + delivery.status.error_message());
  Observe(request, std::move(delivery));
}

// The same tokens up to a part of the text that they make, which must not be seen.
void AnyCase::StopAtItsOwnText() {
  Request request = AnyRequest(dice_, facts_);
  request.clear_request_id();
  request.mutable_stop()->clear_stop_strings();
  Delivery whole = Generate(request, {});
  Check(whole.status.ok() || whole.was_refused(), "failed: " + whole.status.error_message());
  const std::string text = whole.outputs.empty() ? "" : whole.outputs.begin()->second.text;
  const Request without = request;
  if (!text.empty()) {
    request.mutable_stop()->clear_min_tokens();
    const bool same_tokens = without.stop().min_tokens() == 0;
    const int count = dice_.Pick(1, 3);
    for (int i = 0; i < count; ++i) {
      const std::string part = AnyPart(dice_, text);
      if (part.size() <= 256) request.mutable_stop()->add_stop_strings(part);
    }
    Delivery stopped = Generate(request, {});
    Check(stopped.status.ok() || stopped.was_refused(),
          "with stops: " + stopped.status.error_message());
    for (const auto& [index, output] : stopped.outputs) {
      const auto& ids = whole.outputs[index].token_ids;
      Check(!same_tokens ||
                (output.token_ids.size() <= ids.size() &&
                 std::equal(output.token_ids.begin(), output.token_ids.end(), ids.begin())),
            "other tokens than without the stop string");
    }
    Observe(request, std::move(stopped));
  }
  Observe(without, std::move(whole));
}

// What the model says of an output it wrote it must say of the same tokens in a prompt.
void AnyCase::ReadItsOutputAsPrompt() {
  Request request = AnyRequest(dice_, facts_);
  if (!request.output().has_logprobs()) request.mutable_output()->set_logprobs(2);
  Delivery written = Generate(request, {});
  Check(written.status.ok() || written.was_refused(), "failed: " + written.status.error_message());
  const std::vector<int32_t> prompt = *PromptOf(facts_, request);
  for (const auto& [index, output] : written.outputs) {
    Request reading;
    auto& ids = *reading.mutable_token_ids()->mutable_ids();
    ids.Add(prompt.begin(), prompt.end());
    ids.Add(output.token_ids.begin(), output.token_ids.end());
    if (output.token_ids.empty() || ids.size() >= facts_.max_model_len()) continue;
    reading.mutable_sampling()->set_temperature(0);
    reading.mutable_stop()->set_max_tokens(1);
    reading.mutable_output()->set_prompt_logprobs(request.output().logprobs());
    const Delivery read = Generate(reading, {});
    if (read.was_refused()) break;
    Check(read.status.ok(), "read: " + read.status.error_message());
    if (read.prompt_logprobs.size() + 1 != static_cast<size_t>(ids.size())) {
      Check(false, absl::StrCat(read.prompt_logprobs.size(), " prompt logprobs of ", ids.size()));
      break;
    }
    for (size_t i = 0; i < output.token_ids.size(); ++i) {
      Check(read.prompt_logprobs[prompt.size() - 1 + i].SerializeAsString() ==
                output.logprobs[i].SerializeAsString(),
            absl::StrCat("output ", index, ", token ", i,
                         ": read as a prompt it has other logprobs"));
    }
    break;
  }
  Observe(request, std::move(written));
}

void AnyCase::Leave() {
  const Request request = AnyRequest(dice_, facts_);
  Observe(request, Generate(request, {.cancel_after_tokens = dice_.Pick(0, 30)}));
}

void AnyCase::RunLate() {
  const Request request = AnyRequest(dice_, facts_);
  Delivery delivery = Generate(request, {.timeout = absl::Milliseconds(dice_.Pick(1, 300))});
  Check(delivery.status.ok() || delivery.was_refused() ||
            delivery.status.error_code() == StatusCode::DEADLINE_EXCEEDED,
        "failed: " + delivery.status.error_message());
  Observe(request, std::move(delivery));
}

void AnyCase::ReadSlowly() {
  const Request request = AnyRequest(dice_, facts_);
  Delivery delivery = Generate(request, {.pause = absl::Milliseconds(dice_.Pick(1, 30))});
  Check(delivery.status.ok() || delivery.was_refused(),
        "failed: " + delivery.status.error_message());
  Observe(request, std::move(delivery));
}

void AnyCase::AbortIt() {
  const Request request = AnyRequest(dice_, facts_);
  const int after = dice_.Pick(0, 20);
  std::optional<bool> was_running;
  Delivery delivery =
      Generate(request, {.on_event = [&](const Delivery& so_far) {
                 if (was_running || so_far.num_tokens() < after) return;
                 v1::AbortRequest abort;
                 abort.set_request_id(so_far.accepted->request_id());
                 v1::AbortResponse response;
                 grpc::ClientContext context;
                 server_.Prepare(context, absl::Minutes(1));
                 const grpc::Status status = server_.stub().Abort(&context, abort, &response);
                 Check(status.ok() || facts_.may_restart, "Abort: " + status.error_message());
                 was_running = response.was_running();
               }});
  Check(delivery.status.ok() || delivery.was_refused(),
        "failed: " + delivery.status.error_message());
  const bool aborted =
      std::any_of(delivery.outputs.begin(), delivery.outputs.end(), [](const auto& each) {
        return each.second.finished && each.second.finished->reason() == v1::FINISH_REASON_ABORTED;
      });
  Check(was_running.value_or(false) || !aborted || facts_.may_restart, "aborted without Abort");
  if (was_running && facts_.has_journal && !facts_.may_restart) {
    ExpectGone(delivery.accepted->request_id());
  }
  Observe(request, std::move(delivery));
}

void AnyCase::SendTwice() {
  Request request = AnyRequest(dice_, facts_);
  Delivery second;
  bool sent = false;
  Delivery first = Generate(request, {.on_event = [&](const Delivery& so_far) {
                              if (std::exchange(sent, true)) return;
                              Request again = request;
                              again.set_request_id(so_far.accepted->request_id());
                              second = Generate(again, {});
                            }});
  // The first may have ended in the meantime.
  if (sent && !second.status.ok() && !second.was_refused()) {
    ExpectRefusal(second.status, StatusCode::ALREADY_EXISTS, {first.accepted->request_id()});
  }
  Check(first.status.ok() || first.was_refused(), "failed: " + first.status.error_message());
  if (second.accepted) {
    Request again = request;
    again.set_request_id(first.accepted->request_id());
    Observe(again, std::move(second));
  }
  Observe(request, std::move(first));
}

void AnyCase::SendWrong() {
  const WrongRequest wrong = AnyWrongRequest(dice_, facts_);
  const Delivery delivery = Generate(wrong.request, {});
  Check(!delivery.accepted && delivery.outputs.empty(), "a wrong request was accepted");
  if (delivery.was_refused()) return;
  ExpectRefusal(delivery.status, StatusCode::INVALID_ARGUMENT, wrong.named);
  if (!result_.problems.empty()) {
    result_.problems.push_back(wrong.request.ShortDebugString().substr(0, 2000));
  }
}

void AnyCase::ConvertText() {
  if (facts_.may_restart) return;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  const int pieces = dice_.OneIn(4) ? 300 : dice_.Pick(0, 3);
  for (int i = 0; i < pieces; ++i) request.mutable_text()->append(AnyText(dice_));
  request.set_add_special_tokens(dice_.OneIn(2));
  request.set_parse_special_tokens(dice_.OneIn(4));
  grpc::ClientContext context;
  server_.Prepare(context, absl::Minutes(1));
  const grpc::Status status = server_.stub().Tokenize(&context, request, &response);
  v1::DetokenizeRequest back;
  back.mutable_token_ids()->CopyFrom(response.token_ids());
  if (dice_.OneIn(8)) back.add_token_ids(facts_.vocab_size());
  const bool unknown = back.token_ids_size() > response.token_ids_size();
  v1::DetokenizeResponse text;
  grpc::ClientContext back_context;
  server_.Prepare(back_context, absl::Minutes(1));
  const grpc::Status back_status = server_.stub().Detokenize(&back_context, back, &text);
  if (facts_.tokenizer == nullptr) {
    ExpectRefusal(status, StatusCode::INVALID_ARGUMENT, {"tokenizer.json"});
    return ExpectRefusal(back_status, StatusCode::INVALID_ARGUMENT, {"tokenizer.json"});
  }
  Check(status.ok(), "Tokenize: " + status.error_message());
  if (unknown) {
    return ExpectRefusal(back_status, StatusCode::INVALID_ARGUMENT,
                         {absl::StrCat(facts_.vocab_size())});
  }
  Check(back_status.ok(), "Detokenize: " + back_status.error_message());
  Check(request.parse_special_tokens() || text.text() == request.text(),
        absl::StrCat("\"", request.text(), "\" came back as \"", text.text(), "\""));
}

}  // namespace lockstep::testing
