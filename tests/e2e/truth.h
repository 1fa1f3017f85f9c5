// What requests return alone, from a server that answers nothing else, compared with what another
// delivered. Thread-safe: deliveries queue here, and one thread asks one after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "launcher/client/connection.h"
#include "tests/e2e/any_case.h"

namespace lockstep::testing {

class Truth {
 public:
  using OnProblems = std::function<void(uint64_t number, const CaseResult::Observed&, Problems)>;
  // on_problems: called by the thread that asks.
  Truth(const Connection& reference, OnProblems on_problems);
  ~Truth();

  // Waits while many are queued.
  void Judge(uint64_t number, CaseResult::Observed observed);
  // All of them are judged. Returns how many.
  int Finish();

 private:
  void Run();
  Problems JudgeOne(const CaseResult::Observed& observed);

  const Connection& reference_;
  const OnProblems on_problems_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, CaseResult::Observed>> queue_;
  bool closed_ = false;
  int num_judged_ = 0;
  std::thread thread_;
};

}  // namespace lockstep::testing
