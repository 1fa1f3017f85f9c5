#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep::engine {

// No more slots than tokens in a step: then decodes leave room for a chunk as long as one wants to
// run.
Scheduler::Scheduler(const EngineConfig& config)
    : config_(config),
      slots_(std::min(config.max_num_seqs, config.max_batched_tokens)),
      pool_(
          config.num_blocks, [this](int32_t block) { prefix_cache_.Evict(block); },
          [this](int32_t block) { return prefix_cache_.Keeps(block); }),
      prefix_cache_(pool_, config.block_size,
                    config.enable_prefix_cache ? config.num_host_blocks : 0) {
  running_.reserve(slots_.num_slots());
  candidates_.reserve(slots_.num_slots());
}

std::optional<Scheduler::Step> Scheduler::Schedule(uint64_t step_id, const Request* alone) {
  step_id_ = step_id;
  alone_ = alone;
  if (alone != nullptr) PreemptAllBut(*alone);
  budget_ = config_.max_batched_tokens;
  num_opened_tokens_ = 0;
  uint64_t num_preemptions;
  if (AwaitsGuesser()) return std::nullopt;
  // Before their blocks may be given to others.
  if (plan_.offloaded.empty()) plan_.offloaded = prefix_cache_.TakeOffloads(config_.max_offloads());
  do {
    num_preemptions = counts_.num_preemptions;
    awaiting_.reset();
    ScheduleDecodes();
    SchedulePrompts();
    // When all that was chosen gave way to itself, others can move now.
  } while (chunks_.empty() && decodes_.empty() && counts_.num_preemptions != num_preemptions);
  return TakeStep();
}

void Scheduler::ScheduleDecodes() {
  CollectDecodes();
  BeginDrafts();
  for (Sequence* sequence : candidates_) {
    // One ahead of it may have preempted it.
    if (sequence->state == Sequence::State::kRunning && GrowForDecode(*sequence)) {
      AddWork(*sequence, 1, DraftsFor(*sequence));
    }
  }
}

// With pipeline stages, a step takes its share of the decoding sequences, so that they spread over
// the micro-batches and every stage has work; those that waited longest go first.
void Scheduler::CollectDecodes() {
  candidates_.clear();
  int64_t num_decoding = 0;
  for (Sequence* sequence : running_) {
    if (sequence->uncomputed() != 1 || !sequence->can_extend()) continue;
    ++num_decoding;
    const bool token_is_back = sequence->samples_in_flight == 0;
    if (token_is_back || HasPassed(*sequence)) {
      candidates_.push_back(sequence);
    }
  }
  const int64_t share = (num_decoding + config_.pipeline_depth - 1) / config_.pipeline_depth;
  const int64_t limit = std::min(share, budget_);
  if (static_cast<int64_t>(candidates_.size()) <= limit) return;
  std::stable_sort(candidates_.begin(), candidates_.end(), [](const auto* a, const auto* b) {
    return a->last_sample_step < b->last_sample_step;
  });
  candidates_.resize(limit);
  std::sort(candidates_.begin(), candidates_.end(), GoesBefore());
}

// Candidates ask in order, so whoever is preempted here has no work in this plan yet.
bool Scheduler::GrowForDecode(Sequence& sequence) {
  const int64_t missing = BlocksFor(sequence.computed + 1) - sequence.blocks.size();
  while (missing > 0 && !sequence.blocks.Grow(missing)) {
    Sequence& victim = *running_.back();
    Preempt(victim);
    if (&victim == &sequence) return false;
  }
  return true;
}

bool Scheduler::HasPassed(const Sequence& sequence) const {
  return sequence.last_sample_step + config_.pipeline_depth <= step_id_;
}

void Scheduler::AddWork(Sequence& sequence, int64_t num_tokens, std::vector<int32_t> drafts) {
  Settle(sequence);
  const int64_t num_drafts = std::ssize(drafts);
  Entry entry{&sequence,
              static_cast<uint32_t>(sequence.slot),
              sequence.computed,
              static_cast<uint32_t>(num_tokens),
              num_tokens == sequence.uncomputed(),
              std::move(drafts),
              num_drafts > 0 && sequence.drafter->quotes_others()};
  const auto new_blocks = sequence.blocks.blocks().subspan(sequence.num_blocks_granted);
  if (!new_blocks.empty()) {
    plan_.grants.push_back({entry.slot, {new_blocks.begin(), new_blocks.end()}});
    sequence.num_blocks_granted = sequence.blocks.size();
  }
  budget_ -= num_tokens + num_drafts;
  const auto prompt_length = static_cast<int64_t>(sequence.request.given.prompt.size());
  counts_.prompt_tokens_computed +=
      std::clamp(prompt_length - sequence.computed, int64_t{0}, num_tokens);
  sequence.computed += num_tokens;
  if (entry.sample) {
    ++sequence.samples_in_flight;
    sequence.last_sample_step = step_id_;
  }
  ++sequence.steps_in_flight;
  ++sequence.request.steps_in_flight;
  sequence.has_drafts_in_flight = num_drafts > 0;
  counts_.draft_tokens += num_drafts;
  const bool is_decode = num_tokens == 1 && entry.sample;
  // With drafts it has several rows, as a chunk.
  (is_decode && num_drafts == 0 ? decodes_ : chunks_).push_back(std::move(entry));
}

std::optional<Scheduler::Step> Scheduler::TakeStep() {
  if (chunks_.empty() && decodes_.empty()) return std::nullopt;  // what is to be closed can wait
  if (awaiting_) plan_.prefetched = Prefetch();
  Step step;
  step.plan = std::exchange(plan_, {});
  step.plan.step_id = step_id_;
  step.entries.reserve(chunks_.size() + decodes_.size());
  std::move(chunks_.begin(), chunks_.end(), std::back_inserter(step.entries));
  std::move(decodes_.begin(), decodes_.end(), std::back_inserter(step.entries));
  chunks_.clear();
  decodes_.clear();
  step.plan.work.reserve(step.entries.size());
  for (const Entry& entry : step.entries) {
    step.plan.work.push_back({entry.slot, entry.num_tokens, entry.sample, entry.drafts});
    NameFullBlocks(*entry.sequence);
    const auto num_prompt_tokens = entry.sequence->request.given.prompt.size();
    if (entry.sequence->computed >= static_cast<int64_t>(num_prompt_tokens)) {
      Ungate(entry.sequence->request, /*all=*/true);
    }
  }
  step.plan.closed = slots_.TakeClosing();
  counts_.blocks_offloaded += step.plan.offloaded.size();
  counts_.blocks_restored += step.plan.restored.size() + step.plan.prefetched.size();
  return step;
}

void Scheduler::Remove(Sequence& sequence) {
  Request& request = sequence.request;
  const Sequence::State state = std::exchange(sequence.state, Sequence::State::kFinished);
  // With the token before it: an output that begins alike is known by its first token.
  if (config_.max_draft_tokens > 0 && sequence.num_output_tokens() > 0) {
    history_.Add(request.given.cache_salt,
                 sequence.tokens().subspan(request.given.prompt.size() - 1));
  }
  switch (state) {
    case Sequence::State::kGated:
      --request.num_gated;
      --num_gated_;
      break;
    case Sequence::State::kWaiting:
      StopWaiting(sequence);
      break;
    case Sequence::State::kRunning:
      LeaveSlot(sequence);
      break;
    case Sequence::State::kFinished:
      LS_CHECK(false) << "request " << request.given.request_id << " output " << sequence.index;
  }
  --request.num_unfinished;
  // Siblings that waited for its prompt get another one to wait for.
  if (request.num_gated == request.num_unfinished) Ungate(request, /*all=*/false);
}

void Scheduler::Preempt(Sequence& sequence) {
  LeaveSlot(sequence);
  Wait(sequence);
  ++counts_.num_preemptions;
}

void Scheduler::PreemptAllBut(const Request& request) {
  for (size_t i = running_.size(); i-- > 0;) {
    if (&running_[i]->request != &request) Preempt(*running_[i]);
  }
}

// The blocks may go to others at once: steps in flight that still write to them come before any
// step of the next holder.
void Scheduler::LeaveSlot(Sequence& sequence) {
  running_.erase(std::lower_bound(running_.begin(), running_.end(), &sequence, GoesBefore()));
  slots_.Close(sequence.slot);
  sequence.slot = -1;
  sequence.blocks.Clear();
  sequence.num_blocks_granted = 0;
  sequence.num_unsettled = 0;
  sequence.computed = 0;
  sequence.num_blocks_named = 0;
  sequence.prefix = PrefixCache::kRoot;
}

void Scheduler::NameFullBlocks(Sequence& sequence) {
  if (!config_.enable_prefix_cache) return;
  const int64_t size = config_.block_size;
  const std::span<const int32_t> tokens = sequence.tokens();
  const int64_t certain = std::min<int64_t>(sequence.computed, tokens.size());
  for (int64_t i = sequence.num_blocks_named; (i + 1) * size <= certain; ++i) {
    const auto block_tokens = tokens.subspan(i * size, size);
    if (blocked_.sequence != nullptr && ExtendsBlockedPrefix(sequence.prefix, block_tokens)) {
      blocked_.sequence = nullptr;
    }
    sequence.prefix = prefix_cache_.Register(sequence.request.given.cache_salt, sequence.prefix,
                                             block_tokens, sequence.blocks.blocks()[i]);
    sequence.num_blocks_named = i + 1;
  }
}

void Scheduler::Reset() {
  while (!running_.empty()) LeaveSlot(*running_.back());
  waiting_.clear();
  num_waiting_tokens_ = 0;
  num_gated_ = 0;
  blocked_.sequence = nullptr;
  prefix_cache_.Clear();
  plan_.offloaded.clear();
  slots_.Reset();
}

}  // namespace lockstep::engine
