#include "tests/e2e/traffic.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace lockstep::testing {

Traffic::Traffic(const Connection& server, const std::vector<Case>& cases,
                 const std::vector<Outcome>& expected, int num_clients)
    : server_(server),
      cases_(cases),
      expected_(expected),
      num_clients_(static_cast<size_t>(num_clients)),
      states_(cases.size(), State::kUnsent) {
  for (size_t i = 0; i < num_clients_; ++i) clients_.emplace_back([this, i] { RunClient(i); });
}

Traffic::~Traffic() { Join(); }

void Traffic::ExpectDrain() {
  std::lock_guard lock(mutex_);
  draining_ = true;
}

void Traffic::RunClient(size_t first) {
  for (size_t index = first; index < cases_.size(); index += num_clients_) {
    while (!Send(index)) {
      absl::SleepFor(absl::Milliseconds(100));
      std::lock_guard lock(mutex_);
      if (draining_) return;
    }
  }
}

// False: the server took nothing of it and says to try again.
bool Traffic::Send(size_t index) {
  const Outcome outcome = RunCase(server_, cases_[index], /*may_cancel=*/false,
                                  [&](const v1::GenerateEvent& event) { Observe(index, event); });
  const bool was_accepted = [&] {
    std::lock_guard lock(mutex_);
    return states_[index] != State::kUnsent;
  }();
  std::lock_guard lock(mutex_);
  // gRPC itself cancels a call that arrives while its server shuts down.
  const bool refused = outcome.status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       (draining_ && outcome.status.error_code() == grpc::StatusCode::CANCELLED);
  if (refused && !was_accepted) {
    ++(draining_ ? result_.num_refused : result_.num_retried);
    return false;
  }
  states_[index] = State::kFinished;
  const std::string difference = Compare(cases_[index], expected_[index], outcome);
  if (difference.empty()) {
    ++result_.num_right;
  } else {
    result_.problems.push_back(
        absl::StrCat("request ", index, " (", outcome.num_tokens(), " tokens): ", difference));
  }
  return true;
}

void Traffic::Observe(size_t index, const v1::GenerateEvent& event) {
  std::lock_guard lock(mutex_);
  if (event.has_delta()) {
    states_[index] = State::kDecoding;
    token_times_.push_back(absl::Now());
  } else if (event.has_accepted()) {
    states_[index] = State::kAccepted;
  }
}

Traffic::Snapshot Traffic::Look() const {
  Snapshot snapshot;
  for (size_t i = 0; i < states_.size(); ++i) {
    const bool is_long = cases_[i].request.token_ids().ids_size() >= kLongPromptTokens;
    snapshot.num_finished += states_[i] == State::kFinished;
    snapshot.num_decoding += states_[i] == State::kDecoding;
    snapshot.num_in_long_prefill += states_[i] == State::kAccepted && is_long;
  }
  return snapshot;
}

bool Traffic::WaitUntil(const std::function<bool(const Snapshot&)>& condition,
                        absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (condition(Look())) return true;
    }
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

Traffic::Result Traffic::Join() {
  for (std::thread& client : clients_) client.join();
  clients_.clear();
  std::lock_guard lock(mutex_);
  return result_;
}

std::vector<absl::Time> Traffic::token_times() const {
  std::lock_guard lock(mutex_);
  return token_times_;
}

}  // namespace lockstep::testing
