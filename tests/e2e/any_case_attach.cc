// The stories of clients that lose their stream, or take another's.
#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/any_case.h"
#include "tests/e2e/any_request.h"
#include "tests/e2e/stream_call.h"

namespace lockstep::testing {

using grpc::StatusCode;

// Its connection breaks up to three times, and it goes on each time from some of what it had.
void AnyCase::AttachToIt() {
  const Request request = AnyRequest(dice_, facts_);
  Delivery delivery = Generate(request, {.cancel_after_tokens = dice_.Pick(0, 30)});
  for (int breaks = dice_.Pick(0, 2); delivery.accepted && !delivery.status.ok(); --breaks) {
    const v1::PromptAccepted accepted = *delivery.accepted;
    const v1::AttachRequest attach = AttachAgain(SomeParts(delivery), delivery);
    AttachWrongly(attach);
    const int more = delivery.num_tokens() + dice_.Pick(0, 20);
    Receive(attach, {.cancel_after_tokens = breaks > 0 ? more : -1}, delivery);
    if (!facts_.has_journal) {
      ExpectRefusal(delivery.status, StatusCode::FAILED_PRECONDITION, {"journal"});
      delivery.accepted = accepted;
      delivery.status = grpc::Status::CANCELLED;
      break;
    }
    if (!delivery.accepted) {
      // Cancelled before a word: what it had still begins the truth.
      Check(delivery.was_refused() || delivery.status.error_code() == StatusCode::CANCELLED,
            "attach: " + delivery.status.error_message());
      delivery.accepted = accepted;
      delivery.status = grpc::Status::CANCELLED;
      break;
    }
    Check(breaks > 0 || delivery.status.ok(), "attached: " + delivery.status.error_message());
    if (breaks <= 0) break;
  }
  Observe(request, std::move(delivery));
}

// Its connection may have been dead when the end was said: for a while it may ask again.
void AnyCase::ReturnAfterTheEnd() {
  const Request request = AnyRequest(dice_, facts_);
  Delivery delivery = Generate(request, {});
  Check(delivery.status.ok() || delivery.was_refused(),
        "failed: " + delivery.status.error_message());
  Observe(request, delivery);
  if (!facts_.has_journal || !delivery.status.ok()) return;
  Receive(AttachAgain(SomeParts(delivery), delivery), {}, delivery);
  const bool forgotten =
      facts_.may_restart && delivery.status.error_code() == StatusCode::NOT_FOUND;
  if (delivery.was_refused() || forgotten) return;
  Check(delivery.status.ok(), "returned: " + delivery.status.error_message());
  Observe(request, std::move(delivery));
}

// Nobody can attach to what was aborted.
void AnyCase::ExpectGone(const std::string& request_id) {
  v1::AttachRequest attach;
  attach.set_request_id(request_id);
  Delivery delivery;
  Receive(attach, {}, delivery);
  if (!delivery.was_refused()) {
    ExpectRefusal(delivery.status, StatusCode::NOT_FOUND, {request_id});
  }
}

std::map<uint32_t, size_t> AnyCase::SomeParts(const Delivery& delivery) {
  std::map<uint32_t, size_t> kept;
  for (const auto& [index, output] : delivery.outputs) {
    const int all = static_cast<int>(output.parts.size());
    kept[index] = static_cast<size_t>(dice_.OneIn(2) ? all : dice_.Pick(0, all));
  }
  return kept;
}

// As Delivery::Attach, but the client may have less text than tokens, or tokens past an end.
v1::AttachRequest AnyCase::AttachAgain(const std::map<uint32_t, size_t>& kept, Delivery& delivery) {
  std::vector<int> ended;
  for (const auto& [index, output] : delivery.outputs) {
    const bool has_all = output.finished && kept.at(index) == output.parts.size();
    const bool has_room =
        static_cast<int>(output.token_ids.size()) < delivery.accepted->max_tokens();
    if (has_all && has_room) ended.push_back(static_cast<int>(index));
  }
  v1::AttachRequest attach = delivery.Attach(kept);
  for (const int index : ended) {
    if (!dice_.OneIn(4)) attach.mutable_received(index)->add_token_ids(dice_.Pick(0, 100));
  }
  for (auto& [index, output] : delivery.outputs) {
    if (!dice_.OneIn(4)) continue;
    size_t num_bytes = static_cast<size_t>(dice_.Pick(0, static_cast<int>(output.text.size())));
    while (num_bytes > 0 && (static_cast<unsigned char>(output.text[num_bytes]) & 0xC0) == 0x80) {
      --num_bytes;
    }
    output.text.resize(num_bytes);
    for (auto& [num_tokens, bytes_so_far] : output.parts) {
      bytes_so_far = std::min(bytes_so_far, num_bytes);
    }
    attach.mutable_received(static_cast<int>(index))
        ->set_num_text_bytes(static_cast<int64_t>(num_bytes));
  }
  return attach;
}

void AnyCase::AttachWrongly(const v1::AttachRequest& right) {
  if (!facts_.has_journal || !dice_.OneIn(2)) return;
  v1::AttachRequest wrong = right;
  std::vector<std::string> named = {"received[0]"};
  StatusCode code = StatusCode::INVALID_ARGUMENT;
  switch (dice_.Pick(0, 4)) {
    case 0:
      wrong.set_request_id("no such request");
      code = StatusCode::NOT_FOUND;
      named = {"no such request"};
      break;
    case 1:
      while (wrong.received_size() < 65) wrong.add_received();
      named = {"received has 65 entries"};
      break;
    case 2:
      wrong.mutable_received(0)->clear_token_ids();
      wrong.mutable_received(0)->add_token_ids(facts_.vocab_size());
      named.push_back(absl::StrCat(facts_.vocab_size() - 1));
      break;
    case 3:
      wrong.mutable_received(0)->set_num_text_bytes(-1);
      named.push_back("-1");
      break;
    case 4:
      while (wrong.received(0).token_ids_size() <= facts_.max_model_len()) {
        wrong.mutable_received(0)->add_token_ids(1);
      }
      named.push_back("max_tokens");
  }
  Delivery delivery;
  Receive(wrong, {}, delivery);
  if (!delivery.was_refused()) ExpectRefusal(delivery.status, code, named);
}

// A second client takes the stream over while the first still reads.
void AnyCase::AttachFromElsewhere() {
  Request request = AnyRequest(dice_, facts_);
  const int after = dice_.Pick(0, 20);
  std::thread other;
  Delivery taken;
  bool begun = false;
  Habits habits;
  habits.on_event = [&](const Delivery& so_far) {
    if (begun || so_far.num_tokens() < after) return;
    begun = true;
    v1::AttachRequest attach;
    attach.set_request_id(so_far.accepted->request_id());
    other = std::thread([&, attach] {
      taken.status = ReadStream(
          server_, attach, absl::Minutes(3),
          [&](const v1::GenerateEvent& event, grpc::ClientContext&) { taken.Add(event); });
    });
  };
  Delivery delivery = Generate(request, habits);
  if (other.joinable()) other.join();
  const StatusCode code = delivery.status.error_code();
  Check(delivery.status.ok() || (code == StatusCode::ABORTED && facts_.has_journal) ||
            delivery.was_refused(),
        "failed: " + delivery.status.error_message());
  if (begun && !facts_.has_journal) {
    ExpectRefusal(taken.status, StatusCode::FAILED_PRECONDITION, {"journal"});
  } else if (begun && !taken.was_refused()) {
    Check(taken.status.ok(), "taken over: " + taken.status.error_message());
  }
  if (begun) Count(taken);
  if (taken.accepted) {
    request.mutable_sampling()->set_seed(taken.accepted->seed());
    Observe(request, std::move(taken));
  }
  Observe(request, std::move(delivery));
}

}  // namespace lockstep::testing
