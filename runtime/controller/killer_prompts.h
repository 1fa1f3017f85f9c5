// The prompts of requests that killed their ranks: who sends one often sends it again, and each
// time would cost three restarts (engine_losses.cc). The core's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace lockstep {

class KillerPrompts {
 public:
  // A request of this prompt killed its ranks.
  void Add(std::span<const int32_t> prompt, absl::Time now);

  // FAILED_PRECONDITION: within kRefusal, requests of this prompt killed ranks twice.
  absl::Status Check(std::span<const int32_t> prompt, absl::Time now) const;
  // It killed ranks once, or twice long ago: it may be tried, alone.
  bool Contains(std::span<const int32_t> prompt) const { return Find(prompt) != nullptr; }

  static constexpr size_t kMost = 64;  // the newest
  static constexpr absl::Duration kRefusal = absl::Minutes(10);

 private:
  struct Killer {
    size_t prompt_hash = 0;
    int num_times = 0;
    absl::Time last;
  };
  const Killer* Find(std::span<const int32_t> prompt) const;

  std::deque<Killer> killers_;  // oldest first
};

}  // namespace lockstep
