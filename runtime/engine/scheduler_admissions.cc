// Scheduler: who waits, who is admitted, and where there is room.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/engine/scheduler.h"

namespace lockstep::engine {

void Scheduler::Enqueue(Request& request) {
  request.num_gated = 0;
  bool first = true;
  for (auto& sequence : request.sequences) {
    if (sequence->state == Sequence::State::kFinished) continue;
    if (first || !config_.enable_prefix_cache) {
      Wait(*sequence);
    } else {
      sequence->state = Sequence::State::kGated;
      ++request.num_gated;
      ++num_gated_;
    }
    first = false;
  }
}

void Scheduler::Ungate(Request& request, bool all) {
  for (auto& sequence : request.sequences) {
    if (request.num_gated == 0) return;
    if (sequence->state != Sequence::State::kGated) continue;
    Wait(*sequence);
    --request.num_gated;
    --num_gated_;
    if (!all) return;
  }
}

void Scheduler::Wait(Sequence& sequence) {
  sequence.state = Sequence::State::kWaiting;
  sequence.num_waiting_tokens = sequence.tokens().size();
  num_waiting_tokens_ += sequence.num_waiting_tokens;
  waiting_.insert(&sequence);
}

void Scheduler::StopWaiting(Sequence& sequence) {
  waiting_.erase(&sequence);
  num_waiting_tokens_ -= sequence.num_waiting_tokens;
  if (blocked_.sequence == &sequence) blocked_.sequence = nullptr;
}

// Prompts under way and those that wait, in one order.
void Scheduler::SchedulePrompts() {
  LetShortPromptsPass();
  bool admits = true;
  size_t at = 0;  // in running_
  while (budget_ > 0) {
    while (at < running_.size() && running_[at]->uncomputed() <= 1) ++at;
    Sequence* chunk = at < running_.size() ? running_[at] : nullptr;
    Sequence* newcomer = admits ? NextToAdmit() : nullptr;
    if (newcomer != nullptr && (chunk == nullptr || GoesBefore()(newcomer, chunk))) {
      admits = TryAdmit(*newcomer, config_.max_model_len) == Outcome::kAdmitted;
      if (admits) ++at;  // it stands before the chunk
    } else if (chunk != nullptr) {
      AddWork(*chunk, std::min(chunk->uncomputed(), budget_));
      ++at;
    } else {
      break;
    }
  }
}

// A prompt that takes more than this step leaves a quarter of it to those behind it that need no
// more than that; they would wait for all its steps. So do those that wait.
void Scheduler::LetShortPromptsPass() {
  constexpr int64_t kShare = 4;
  size_t at = 0;
  while (at < running_.size() && running_[at]->uncomputed() <= 1) ++at;
  if (at == running_.size() || running_[at]->uncomputed() <= budget_) return;
  const int64_t rest = budget_ - budget_ / kShare;
  budget_ -= rest;
  while (++at < running_.size()) {
    const int64_t uncomputed = running_[at]->uncomputed();
    if (uncomputed > 1 && uncomputed <= budget_) AddWork(*running_[at], uncomputed);
  }
  AdmitShortPrompts();
  budget_ += rest;
}

// Whoever is passed keeps the slot and the blocks that it would find now, cached ones not counted.
void Scheduler::AdmitShortPrompts() {
  constexpr int kMostLooks = 256;
  const Sequence* passed = nullptr;  // the first
  const auto leaves_room = [&](const Sequence& sequence) {
    const int64_t need =
        BlocksFor(passed->tokens().size()) + BlocksFor(sequence.tokens().size()) + 1;
    return slots_.num_free() > 1 && need + NumReserved() <= pool_.num_available();
  };
  Sequence* next = NextToAdmit();
  for (int looks = 0; next != nullptr && budget_ > 0 && looks < kMostLooks; ++looks) {
    Outcome outcome = Outcome::kLater;
    if (passed == nullptr) {
      outcome = TryAdmit(*next, budget_);
      if (outcome == Outcome::kLater) passed = next;
    } else if (std::ssize(next->tokens()) <= budget_) {
      outcome = leaves_room(*next) ? TryAdmit(*next, budget_) : Outcome::kRefused;
    }
    if (outcome == Outcome::kRefused) return;
    next = NextBehind(*next);
  }
}

// Of whom no more is uncomputed than that. Who finds no room, or awaits its blocks, is overtaken by
// nobody.
Scheduler::Outcome Scheduler::TryAdmit(Sequence& sequence, int64_t most_tokens) {
  if (!slots_.Next()) return Outcome::kRefused;
  if (awaiting_ && awaiting_->sequence == &sequence) return Outcome::kRefused;
  // Preempted a moment ago: its last tokens are still to come.
  if (sequence.steps_in_flight > 0) return Outcome::kRefused;
  const int64_t num_opened = num_opened_tokens_ + sequence.num_opened_tokens();
  if (!plan_.opened.empty() && num_opened > config_.max_opened_tokens) return Outcome::kRefused;
  const std::optional<Admission> room = FindRoom(sequence);
  if (!room) return Outcome::kRefused;
  if (IsComputedNow(sequence, room->cached)) return Outcome::kLater;
  // All others that run would wait until its blocks are back: they come beside their steps. What
  // passed it meanwhile would grow into the room that they come back to, again and again.
  if (room->cached.num_to_restore() > 0 && !running_.empty()) {
    awaiting_ = {&sequence, *room};
    return Outcome::kRefused;
  }
  const int64_t num_cached = room->cached.size() * config_.block_size;
  if (std::ssize(sequence.tokens()) - num_cached > most_tokens) return Outcome::kLater;
  Admit(sequence, *room);
  num_opened_tokens_ = num_opened;
  AddWork(sequence, std::min(sequence.uncomputed(), budget_));
  return Outcome::kAdmitted;
}

// Whether at least half of what it lacks is computed in this very plan for another one: it finds
// that in the next plan.
bool Scheduler::IsComputedNow(const Sequence& sequence, const PrefixCache::Match& cached) const {
  if (!config_.enable_prefix_cache || sequence.wants_prompt_logprobs()) return false;
  const int64_t begin = cached.size() * config_.block_size;
  const std::span<const int32_t> tokens = sequence.tokens();
  const int64_t lacks = std::ssize(tokens) - begin;
  return std::any_of(chunks_.begin(), chunks_.end(), [&](const Entry& entry) {
    const Sequence& other = *entry.sequence;
    const bool is_there = other.prefix == cached.last() &&
                          other.num_blocks_named == cached.size() &&
                          other.request.given.cache_salt == sequence.request.given.cache_salt;
    if (!is_there) return false;
    const std::span<const int32_t> others = other.tokens();
    const int64_t end = std::min({other.computed, std::ssize(others), std::ssize(tokens) - 1});
    int64_t common = begin;
    while (common < end && tokens[common] == others[common]) ++common;
    const int64_t saved = common / config_.block_size * config_.block_size - begin;
    return saved > 0 && 2 * saved >= lacks;
  });
}

Sequence* Scheduler::NextToAdmit() const {
  const auto next =
      alone_ == nullptr ? waiting_.begin() : waiting_.lower_bound(alone_->sequences.front().get());
  return MayAdmit(next) ? *next : nullptr;
}

// Which may have been admitted since.
Sequence* Scheduler::NextBehind(Sequence& sequence) const {
  const auto next = waiting_.upper_bound(&sequence);
  return MayAdmit(next) ? *next : nullptr;
}

bool Scheduler::MayAdmit(Waiting::const_iterator waiting) const {
  return waiting != waiting_.end() && (alone_ == nullptr || &(*waiting)->request == alone_);
}

// Blocks that running sequences will ask for next: one for each that has not all it can need.
int64_t Scheduler::NumReserved() const {
  return std::count_if(running_.begin(), running_.end(), [this](const Sequence* sequence) {
    return sequence->blocks.size() < BlocksFor(sequence->max_length - 1);
  });
}

Scheduler::Admission Scheduler::LookUp(const Sequence& sequence) const {
  const int64_t num_tokens = sequence.tokens().size();
  Admission admission;
  PrefixCache::Match& cached = admission.cached;
  if (config_.enable_prefix_cache && !sequence.wants_prompt_logprobs()) {
    // The last known token is always computed, for its logits.
    cached = prefix_cache_.Lookup(sequence.request.given.cache_salt, sequence.tokens(),
                                  (num_tokens - 1) / config_.block_size);
  }
  admission.num_new_blocks = BlocksFor(num_tokens) - cached.size() + cached.num_to_restore();
  admission.need = admission.num_new_blocks +
                   std::count_if(cached.blocks.begin(), cached.blocks.end(), [&](int32_t block) {
                     return block != PrefixCache::kNoBlock && !pool_.IsHeld(block);
                   });
  return admission;
}

// All blocks of its known tokens or none. Those that running sequences ask for next stay, else the
// newcomer would be preempted as soon as they grow.
std::optional<Scheduler::Admission> Scheduler::FindRoom(const Sequence& sequence) {
  const int64_t reserve = NumReserved();
  if (blocked_.sequence == &sequence && pool_.num_available() < blocked_.need + reserve) {
    return std::nullopt;
  }
  Admission admission = LookUp(sequence);
  if (pool_.num_available() >= admission.need + reserve) {
    if (blocked_.sequence == &sequence) blocked_.sequence = nullptr;
    return admission;
  }
  blocked_ = {&sequence, admission.need, std::move(admission.cached.nodes)};
  return std::nullopt;
}

int64_t Scheduler::CachedPrefixTokens(const EngineRequest& request) const {
  if (!config_.enable_prefix_cache || request.sampling.num_prompt_logprobs >= 0) return 0;
  const int64_t max_blocks = (static_cast<int64_t>(request.prompt.size()) - 1) / config_.block_size;
  const auto match = prefix_cache_.Lookup(request.cache_salt, request.prompt, max_blocks);
  return match.size() * config_.block_size;
}

// Holds what is cached, in its order; of what only the host has, the first most_copies blocks, for
// which there must be room.
void Scheduler::HoldCached(const PrefixCache::Match& cached, int64_t most_copies,
                           std::vector<BlockCopy>& copies, BlockTable& table) {
  for (const int32_t block : cached.blocks) {
    if (block != PrefixCache::kNoBlock) pool_.AddReference(block);
  }
  std::vector<int32_t> new_blocks;  // which may have been cached, but not here
  LS_CHECK(pool_.Allocate(std::min(most_copies, cached.num_to_restore()), new_blocks));
  auto next = new_blocks.begin();
  for (size_t i = 0; i < cached.blocks.size(); ++i) {
    int32_t block = cached.blocks[i];
    if (block == PrefixCache::kNoBlock) {
      if (next == new_blocks.end()) continue;
      block = *next++;
      prefix_cache_.Restore(cached.host_blocks[i], block);
      copies.push_back({block, cached.host_blocks[i]});
    }
    table.Adopt(block);
  }
}

// For who awaits its blocks, then for those behind it, as far as there is room for all that each of
// them needs. Beside a step of which nothing more is to be granted: nobody holds these blocks.
std::vector<BlockCopy> Scheduler::Prefetch() {
  constexpr int64_t kMostLooks = 16;
  // A step reads the weights, which takes as long as to compute some 256 tokens; beyond these its
  // time grows with them.
  constexpr int64_t kTokensOfShortestStep = 256;
  const int64_t num_tokens = config_.max_batched_tokens - budget_;
  const int64_t most =
      num_prefetched_blocks_ * std::max<int64_t>(num_tokens / kTokensOfShortestStep, 1);
  std::vector<BlockCopy> copies;
  int64_t room = pool_.num_available() - NumReserved();
  int64_t looks = std::min(slots_.num_free(), kMostLooks);
  auto [next, wanted] = *std::move(awaiting_);
  for (; looks > 0; --looks) {
    room -= wanted.need;
    if (room < 0) break;
    BlockTable held(pool_);  // now most recently used
    HoldCached(wanted.cached, most - std::ssize(copies), copies, held);
    next = NextBehind(*next);
    if (next == nullptr || std::ssize(copies) == most) break;
    wanted = LookUp(*next);
  }
  return copies;
}

void Scheduler::Admit(Sequence& sequence, const Admission& admission) {
  StopWaiting(sequence);
  blocked_.sequence = nullptr;
  awaiting_.reset();
  sequence.state = Sequence::State::kRunning;
  sequence.slot = slots_.Take();
  sequence.last_sample_step = 0;
  const PrefixCache::Match& cached = admission.cached;
  HoldCached(cached, cached.num_to_restore(), plan_.restored, sequence.blocks);
  LS_CHECK(sequence.blocks.Grow(admission.num_new_blocks - cached.num_to_restore()));
  sequence.num_blocks_named = cached.size();
  sequence.prefix = cached.last();
  sequence.computed = sequence.num_blocks_named * config_.block_size;
  const int64_t num_prompt_tokens = sequence.request.given.prompt.size();
  if (!sequence.num_cached_prompt_tokens) {
    sequence.num_cached_prompt_tokens = std::min(sequence.computed, num_prompt_tokens);
  }
  // What siblings find was computed for the first, what a preempted one finds by itself.
  if (!sequence.request.admitted_at)
    counts_.prompt_tokens_cached += *sequence.num_cached_prompt_tokens;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, GoesBefore()),
                  &sequence);
  plan_.opened.push_back(sequence.Open());
}

// Whether the blocked sequence goes on with these tokens after this part of its prefix. (Salts are
// compared by who looks it up.)
bool Scheduler::ExtendsBlockedPrefix(PrefixCache::Node parent,
                                     std::span<const int32_t> tokens) const {
  int64_t num_before = 0;  // blocks
  if (parent != PrefixCache::kRoot) {
    const auto at = std::lower_bound(blocked_.prefix.begin(), blocked_.prefix.end(), parent);
    if (at == blocked_.prefix.end() || *at != parent) return false;
    num_before = at - blocked_.prefix.begin() + 1;
  }
  const std::span<const int32_t> rest =
      blocked_.sequence->tokens().subspan(num_before * config_.block_size);
  return rest.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), rest.begin());
}

int64_t Scheduler::NumUncomputedTokens() const {
  int64_t num_tokens = num_waiting_tokens_;
  for (const Sequence* sequence : running_) num_tokens += sequence->uncomputed();
  return num_tokens;
}

const Request* Scheduler::StrandedRequest() const {
  if (waiting_.empty()) return nullptr;
  const bool finds_none = !slots_.Next() || blocked_.sequence == *waiting_.begin();
  if (!finds_none) return nullptr;
  const auto it = std::find_if(waiting_.begin(), waiting_.end(), [](const Sequence* sequence) {
    return !sequence->request.admitted_at && sequence->request.num_losses == 0;
  });
  return it == waiting_.end() ? nullptr : &(*it)->request;
}

bool Scheduler::HasRoomFor(const EngineRequest& request) const {
  const int64_t num_ahead = std::ssize(running_) + std::ssize(waiting_) + num_gated_;
  if (num_ahead == 0) return true;  // the engine accepts only what fits alone
  const int num_slots = slots_.num_slots();
  if (num_ahead + std::min(request.num_outputs, num_slots) > num_slots) return false;
  int64_t need = NumReserved() + BlocksFor(request.prompt.size()) + request.num_outputs;
  for (const Sequence* sequence : waiting_) need += BlocksFor(sequence->tokens().size()) + 1;
  return need <= pool_.num_available();
}

}  // namespace lockstep::engine
