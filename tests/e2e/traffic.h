// Clients that send known requests one after the other and compare every answer, while something
// happens to the server.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "launcher/client/connection.h"
#include "tests/e2e/random_cases.h"

namespace lockstep::testing {

class Traffic {
 public:
  static constexpr int kLongPromptTokens = 300;

  struct Snapshot {
    int num_finished = 0;
    int num_in_long_prefill = 0;  // accepted, no token yet, kLongPromptTokens or more in the prompt
    int num_decoding = 0;         // some tokens, not all
  };
  struct Result {
    int num_right = 0;
    int num_refused = 0;  // by a draining server, before they were accepted; not sent again
    int num_retried = 0;  // refused with UNAVAILABLE before they were accepted, and sent again
    std::vector<std::string> problems;
  };

  // Client i sends the cases i, i + num_clients, ... The vectors must outlive this.
  Traffic(const Connection& server, const std::vector<Case>& cases,
          const std::vector<Outcome>& expected, int num_clients);
  ~Traffic();

  // From now on a refusal ends a client.
  void ExpectDrain();
  // False when the time is over.
  bool WaitUntil(const std::function<bool(const Snapshot&)>& condition, absl::Duration timeout);
  // All answers are in.
  Result Join();
  // When tokens came.
  std::vector<absl::Time> token_times() const;

 private:
  enum class State { kUnsent, kAccepted, kDecoding, kFinished };

  void RunClient(size_t first);
  bool Send(size_t index);
  void Observe(size_t index, const v1::GenerateEvent& event);
  Snapshot Look() const;

  const Connection& server_;
  const std::vector<Case>& cases_;
  const std::vector<Outcome>& expected_;
  const size_t num_clients_;
  mutable std::mutex mutex_;
  std::vector<State> states_;
  std::vector<absl::Time> token_times_;
  Result result_;
  bool draining_ = false;
  std::vector<std::thread> clients_;
};

}  // namespace lockstep::testing
