// What a client may do with a request: take it all, leave, be slow, abort it, attach to it, be
// wrong. One case is one drawn request and one such story. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/client/connection.h"
#include "tests/e2e/delivery.h"
#include "tests/e2e/dice.h"
#include "tests/e2e/server_facts.h"

namespace lockstep::testing {

struct CaseResult {
  // Accepted requests and what came of them: the truth is for another server to tell.
  struct Observed {
    v1::GenerateRequest request;
    std::vector<int32_t> prompt;
    Delivery delivery;
  };
  std::string story;
  Problems problems;
  std::vector<Observed> observed;
  // Calls that were, by what their clients heard; the last kind ended before anything was heard.
  int num_accepted = 0;
  int num_refused = 0;
  int num_unknown = 0;
  bool queue_was_full = false;
};

class AnyCase {
 public:
  // The servers' facts and the connection must outlive it.
  AnyCase(const Connection& server, const ServerFacts& facts, uint64_t seed);
  CaseResult Run();

 private:
  using Request = v1::GenerateRequest;
  struct Habits {
    absl::Duration timeout = absl::Minutes(3);
    int cancel_after_tokens = -1;                 // -1: never
    absl::Duration pause = absl::ZeroDuration();  // between reads
    std::function<void(const Delivery&)> on_event = nullptr;
  };

  void TakeAll();
  void StopAtItsOwnText();
  void ReadItsOutputAsPrompt();
  void Leave();
  void RunLate();
  void ReadSlowly();
  void AbortIt();
  void AttachToIt();
  void AttachFromElsewhere();
  void ReturnAfterTheEnd();
  void SendTwice();
  void SendWrong();
  void ExpectGone(const std::string& request_id);
  std::map<uint32_t, size_t> SomeParts(const Delivery& delivery);
  v1::AttachRequest AttachAgain(const std::map<uint32_t, size_t>& kept, Delivery& delivery);
  void AttachWrongly(const v1::AttachRequest& right);
  void ConvertText();

  Delivery Generate(const Request& request, const Habits& habits);
  void Receive(const Request& request, const Habits& habits, Delivery& delivery);
  void Receive(const v1::AttachRequest& attach, const Habits& habits, Delivery& delivery);
  void GoOn(const Habits& habits, Delivery& delivery);
  bool IsServerGone(const Delivery& delivery);
  void Take(const v1::GenerateEvent& event, grpc::ClientContext& context, const Habits& habits,
            Delivery& delivery);
  void Count(const Delivery& delivery);
  void Observe(const Request& request, Delivery delivery);
  void ExpectRefusal(const grpc::Status& status, grpc::StatusCode code,
                     const std::vector<std::string>& named);
  void Check(bool holds, const std::string& what);

  const Connection& server_;
  const ServerFacts& facts_;
  Dice dice_;
  CaseResult result_;
};

}  // namespace lockstep::testing
