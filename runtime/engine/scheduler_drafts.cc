// Scheduler: guesses of next tokens, computed in the step that checks them.
#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/scheduler.h"

namespace lockstep::engine {

int64_t Scheduler::NumFreeSamples() const {
  return slots_.num_slots() - std::ssize(running_) - std::ssize(waiting_);
}

// Few enough outputs run that guesses are worth their rows, and none waits for theirs.
bool Scheduler::MayGuess() const {
  return config_.max_draft_tokens > 0 && NumFreeSamples() > 0 &&
         2 * static_cast<int64_t>(running_.size()) <= config_.max_step_drafts;
}

bool Scheduler::Guesses(const Sequence& sequence) const {
  return sequence.has_drafts_in_flight || (MayGuess() && sequence.drafter != nullptr &&
                                           sequence.drafter->is_ready() && sequence.can_extend());
}

// Guesses come after a token that is known. Would the others run ahead meanwhile, there were two
// halves of the batch from then on, each in steps of its own, which take as long as those of all.
bool Scheduler::AwaitsGuesser() const {
  if (config_.max_draft_tokens == 0) return false;
  return std::any_of(running_.begin(), running_.end(), [this](const Sequence* sequence) {
    return sequence->samples_in_flight > 0 && HasPassed(*sequence) && Guesses(*sequence);
  });
}

void Scheduler::BeginDrafts() {
  drafts_left_ = num_guessers_left_ = 0;
  if (!MayGuess()) return;
  drafts_left_ = std::min<int64_t>(NumFreeSamples(), config_.max_step_drafts);
  num_guessers_left_ =
      std::count_if(candidates_.begin(), candidates_.end(),
                    [this](const Sequence* sequence) { return Guesses(*sequence); });
}

// Of what is left an equal share, so that where there is little the first ones have some.
std::vector<int32_t> Scheduler::DraftsFor(Sequence& sequence) {
  if (sequence.samples_in_flight > 0 || !Guesses(sequence)) return {};
  const int64_t share =
      (drafts_left_ + num_guessers_left_ - 1) / std::max<int64_t>(num_guessers_left_, 1);
  --num_guessers_left_;
  // One more token is chosen than there are guesses.
  const int64_t most = std::min({share, static_cast<int64_t>(config_.max_draft_tokens),
                                 sequence.max_length - sequence.length() - 1});
  if (most <= 0) return {};
  const DraftSources sources = sequence.DraftFrom(history_);
  sequence.drafter->Follow(sources);
  std::vector<int32_t> drafts = sequence.drafter->Propose(sources, static_cast<int>(most));
  drafts.resize(RoomForDrafts(sequence, std::ssize(drafts)));
  drafts_left_ -= std::ssize(drafts);
  return drafts;
}

// Nobody is preempted for guesses, and the next block of each that runs is left alone.
int64_t Scheduler::RoomForDrafts(Sequence& sequence, int64_t wanted) {
  const int64_t first = sequence.computed + 1;
  const int64_t missing = BlocksFor(first + wanted) - sequence.blocks.size();
  if (missing > 0 && pool_.num_available() >= missing + std::ssize(running_)) {
    LS_CHECK(sequence.blocks.Grow(missing));
  }
  return std::min(wanted, sequence.blocks.size() * config_.block_size - first);
}

void Scheduler::Settle(Sequence& sequence) {
  if (sequence.num_unsettled == 0) return;
  const auto tokens = sequence.tokens().last(sequence.num_unsettled);
  plan_.settled.push_back({static_cast<uint32_t>(sequence.slot), {tokens.begin(), tokens.end()}});
  sequence.num_unsettled = 0;
}

}  // namespace lockstep::engine
