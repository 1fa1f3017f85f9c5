// Engine: which request kills its ranks.
//
// Replayed as often as they die, one that does (a fault of a kernel that only its tokens or its
// length bring about) would take everybody's server with it. What a lost replica computed may have
// killed it. Who was there at two losses in a row, without coming further in between, is suspected:
// suspects run before all others, one request at a time and nothing else with it, until they have.
// The next loss names the one that ran. Others, and those suspected wrongly, lose time only.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "runtime/engine/engine.h"

namespace lockstep::engine {
namespace {

constexpr int kMostLosses = 3;  // as a suspect it was alone at the last of them

}  // namespace

// Of the steps in flight. Returns the request to blame.
std::optional<uint64_t> Engine::CountLoss() {
  absl::flat_hash_set<Request*> computed;
  for (const StepInFlight& step : in_flight_) {
    for (const Scheduler::Entry& entry : step.entries) {
      computed.insert(&entry.sequence->request);
      std::optional<int64_t>& furthest = entry.sequence->computed_at_loss;
      furthest = std::max(furthest.value_or(0), entry.start + entry.num_tokens);
    }
  }
  std::optional<uint64_t> blamed;
  for (Request* request : computed) {
    if (request->num_unfinished == 0) continue;
    ++request->num_losses;
    Suspect(*request);
    if (request->num_losses >= kMostLosses) blamed = request->given.request_id;
  }
  return blamed;
}

void Engine::Suspect(Request& request) {
  if (request.num_losses < kLossesOfASuspect) return;
  suspects_.emplace(std::pair(request.given.priority, request.given.request_id), &request);
}

// What killed its ranks lies before where they had come. Of an output that they did not compute
// nothing is asked: it may not run for long.
void Engine::NoteSurvived(Sequence& sequence, int64_t computed) {
  Request& request = sequence.request;
  if (request.num_losses == 0) return;
  if (computed > sequence.computed_at_loss.value_or(0)) sequence.computed_at_loss.reset();
  for (const auto& each : request.sequences) {
    if (each->computed_at_loss && each->state != Sequence::State::kFinished) return;
  }
  request.num_losses = 0;
  suspects_.erase({request.given.priority, request.given.request_id});
}

Request* Engine::FirstSuspect() const {
  return suspects_.empty() ? nullptr : suspects_.begin()->second;
}

bool Engine::AnyInFlightBut(const Request& request) const {
  for (const StepInFlight& step : in_flight_) {
    for (const Scheduler::Entry& entry : step.entries) {
      if (&entry.sequence->request != &request) return true;
    }
  }
  return false;
}

}  // namespace lockstep::engine
