// The thread for work that grows with clients' texts: parsing long requests, tokenizing, compiling
// constraints. gRPC's few threads carry the ranks' results, too, and do short work only.
//
// What waits is bounded, so that nobody waits for a minute of others' texts. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "runtime/controller/task_queue.h"

namespace lockstep {

class TextThread {
 public:
  // Called once. Not OK: nothing is to be done but to answer so.
  using Work = absl::AnyInvocable<void(const absl::Status&)>;

  static constexpr int64_t kMaxInlineBytes = 4096;
  static constexpr int64_t kMaxWaitingBytes = int64_t{64} << 20;  // some ten seconds of work

  // Up to kMaxInlineBytes of text are worked on by the caller, more by the thread, in order.
  // RESOURCE_EXHAUSTED: more than kMaxWaitingBytes would wait; UNAVAILABLE: after Refuse.
  void Run(int64_t num_bytes, Work work);
  // From now on nothing is done, of what waits neither.
  void Refuse() { refuses_ = true; }
  // Ends the thread, once what waits is done or refused. Nobody may call Run any more.
  void Stop() { thread_.Stop(); }

 private:
  absl::Status CheckRoom(int64_t num_bytes);

  std::atomic<bool> refuses_ = false;
  std::atomic<int64_t> num_waiting_bytes_ = 0;  // what is worked on included
  TaskThread thread_;
};

}  // namespace lockstep
