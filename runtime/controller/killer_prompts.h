// The prompts of requests that killed their ranks: who sends one often sends it again, and each
// time would cost three restarts (engine_losses.cc). The core's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
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
  // Set: it killed ranks once, or twice long ago, and may be tried, alone.
  std::optional<size_t> Find(std::span<const int32_t> prompt) const;
  // A request of the prompt that was found so has come to its end: others were to blame, or it has
  // been mended.
  void Forgive(size_t found);

  static constexpr size_t kMost = 64;  // the newest
  static constexpr absl::Duration kRefusal = absl::Minutes(10);

 private:
  struct Killer {
    size_t prompt_hash = 0;
    int num_times = 0;
    absl::Time last;
  };
  std::deque<Killer>::const_iterator At(size_t prompt_hash) const;

  std::deque<Killer> killers_;  // oldest first
};

}  // namespace lockstep
