#include "runtime/engine/engine.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace lockstep::engine {
namespace {

const EngineConfig& Checked(const EngineConfig& config) {
  LS_CHECK_GE(config.num_blocks, 1);
  LS_CHECK_GE(config.block_size, 1);
  LS_CHECK_GE(config.max_num_seqs, 1);
  LS_CHECK_GE(config.max_batched_tokens, 1);
  LS_CHECK_GE(config.max_model_len, 2);
  LS_CHECK_LE(config.max_model_len, std::numeric_limits<int32_t>::max());
  LS_CHECK_GE(config.max_queued_requests, 1);
  LS_CHECK_GE(config.pipeline_depth, 1);
  LS_CHECK_GE(config.max_steps_in_flight, 1);
  LS_CHECK_GE(config.max_draft_tokens, 0);
  LS_CHECK_GE(config.max_step_drafts, 0);
  return config;
}

}  // namespace

Engine::Engine(const EngineConfig& config) : config_(Checked(config)), scheduler_(config_) {}

Engine::~Engine() = default;

absl::Status Engine::Add(EngineRequest given) {
  RETURN_IF_ERROR(CheckAdd(given));
  const auto emitted = std::exchange(given.emitted, {});
  LS_CHECK(emitted.empty() || static_cast<int>(emitted.size()) == given.num_outputs);
  Request& request = Insert(MakeRequest(std::move(given)));
  int num_unfinished = request.num_unfinished;  // with its last output the request is gone
  for (size_t i = 0; i < emitted.size() && num_unfinished > 0; ++i) {
    if (emitted[i].empty()) continue;
    CommitEmitted(*request.sequences[i], emitted[i]);
    if (events_.back().finish) --num_unfinished;
  }
  return absl::OkStatus();
}

void Engine::CommitEmitted(Sequence& sequence, const std::vector<int32_t>& tokens) {
  // Whoever has tokens of it has had what comes before them.
  sequence.num_prompt_logprobs_delivered = sequence.request.given.prompt.size() - 1;
  EngineEvent& event = AddEvent(sequence);
  for (size_t i = 0; i < tokens.size() && !event.finish; ++i) {
    Append(sequence, tokens[i], event);
    ++event.num_emitted;
  }
  EndIfFinished(sequence, event);
}

std::unique_ptr<Request> Engine::MakeRequest(EngineRequest given) {
  const int64_t max_length = MaxLength(given);
  auto request = std::make_unique<Request>(std::move(given));
  request->stop_tokens = request->given.sampling.stop_token_ids;
  if (!request->given.sampling.ignore_eos) {
    request->stop_tokens.insert(request->stop_tokens.end(), config_.eos_token_ids.begin(),
                                config_.eos_token_ids.end());
  }
  request->num_unfinished = request->given.num_outputs;
  for (int i = 0; i < request->given.num_outputs; ++i) {
    request->sequences.push_back(std::make_unique<Sequence>(*request, i, scheduler_.pool()));
    request->sequences.back()->max_length = max_length;
    if (config_.max_draft_tokens > 0) {
      request->sequences.back()->drafter = std::make_unique<Drafter>(request->given.prompt.size());
    }
  }
  if (request->num_losses > 0) {
    request->sequences.front()->computed_at_loss = request->given.prompt.size();
  }
  return request;
}

Request& Engine::Insert(std::unique_ptr<Request> request) {
  if (request->given.deadline < absl::InfiniteFuture()) {
    deadlines_.emplace(std::pair(request->given.deadline, request->given.request_id),
                       request.get());
  }
  if (!request->admitted_at) ++num_queued_requests_;
  scheduler_.Enqueue(*request);
  const uint64_t id = request->given.request_id;
  const auto [inserted, is_new] = requests_.emplace(id, std::move(request));
  LS_CHECK(is_new) << "request " << id;
  Suspect(*inserted->second);
  return *inserted->second;
}

void Engine::Abort(uint64_t request_id) {
  ForgetEvents(request_id, std::nullopt);
  const auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  for (auto& sequence : request.sequences) {
    if (sequence->state != Sequence::State::kFinished) scheduler_.Remove(*sequence);
  }
  Retire(request);
}

void Engine::FinishOutput(uint64_t request_id, uint32_t sequence_index) {
  ForgetEvents(request_id, sequence_index);
  const auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  Request& request = *it->second;
  if (sequence_index >= request.sequences.size()) return;
  Sequence& sequence = *request.sequences[sequence_index];
  if (sequence.state == Sequence::State::kFinished) return;
  scheduler_.Remove(sequence);
  if (request.num_unfinished == 0) Retire(request);
}

std::optional<StepPlan> Engine::Schedule(absl::Time now) {
  ExpireDeadlines(now);
  if (static_cast<int>(in_flight_.size()) >= config_.max_steps_in_flight) return std::nullopt;
  const Request* alone = FirstSuspect();
  if (alone != nullptr && AnyInFlightBut(*alone)) return std::nullopt;
  std::optional<Scheduler::Step> step = scheduler_.Schedule(next_step_id_, alone);
  if (!step) return std::nullopt;
  ++next_step_id_;
  ++num_steps_;
  for (const Scheduler::Entry& entry : step->entries) {
    Request& request = entry.sequence->request;
    if (request.admitted_at) continue;
    request.admitted_at = now;
    --num_queued_requests_;
  }
  in_flight_.push_back({step->plan.step_id, std::move(step->entries)});
  return std::move(step->plan);
}

absl::Status Engine::Commit(const StepResult& result) {
  RETURN_IF_ERROR(CheckResult(result));
  for (const PromptLogprobs& given : result.prompt_logprobs) CommitPromptLogprobs(given);
  auto sampled = result.sampled.begin();
  events_.reserve(events_.size() + result.sampled.size());
  for (const Scheduler::Entry& entry : in_flight_.front().entries) {
    Sequence& sequence = *entry.sequence;
    Request& request = sequence.request;
    --sequence.steps_in_flight;
    NoteSurvived(sequence, entry.start + entry.num_tokens);
    if (entry.sample) {
      --sequence.samples_in_flight;
      const std::span<const SampledToken> chosen(sampled, 1 + entry.drafts.size());
      sampled += std::ssize(chosen);
      CommitChosen(entry, chosen);
    }
    if (--request.steps_in_flight == 0 && request.num_unfinished == 0) retired_.erase(&request);
  }
  in_flight_.pop_front();
  return absl::OkStatus();
}

const Scheduler::Entry* Engine::EntryOfSlot(uint32_t slot) const {
  const auto& entries = in_flight_.front().entries;
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [slot](const auto& entry) { return entry.slot == slot; });
  return it == entries.end() ? nullptr : &*it;
}

// A prompt computed again after a preemption tells again what was delivered already.
void Engine::CommitPromptLogprobs(const PromptLogprobs& given) {
  Sequence& sequence = *EntryOfSlot(given.slot)->sequence;
  if (sequence.state == Sequence::State::kFinished || !sequence.wants_prompt_logprobs()) return;
  const size_t known = sequence.num_prompt_logprobs_delivered + 1 - given.first_position;
  if (known >= given.logprobs.size()) return;
  EngineEvent event;
  event.request_id = sequence.request.given.request_id;
  event.sequence_index = sequence.index;
  event.prompt_logprobs.assign(given.logprobs.begin() + known, given.logprobs.end());
  sequence.num_prompt_logprobs_delivered += event.prompt_logprobs.size();
  events_.push_back(std::move(event));
}

EngineEvent& Engine::AddEvent(const Sequence& sequence) {
  EngineEvent& event = events_.emplace_back();
  event.request_id = sequence.request.given.request_id;
  event.sequence_index = sequence.index;
  event.num_cached_prompt_tokens = sequence.num_cached_prompt_tokens.value_or(0);
  event.admitted_at = sequence.request.admitted_at.value_or(absl::InfiniteFuture());
  return event;
}

// After each draft that came true, the next token chosen is the sequence's, too. What a finished
// sequence still sampled is dropped.
void Engine::CommitChosen(const Scheduler::Entry& entry, std::span<const SampledToken> chosen) {
  using State = Sequence::State;
  Sequence& sequence = *entry.sequence;
  const std::vector<int32_t>& drafts = entry.drafts;
  sequence.has_drafts_in_flight = false;
  if (sequence.state == State::kFinished) return;
  const bool is_in_its_slot = sequence.state == State::kRunning;
  size_t num_accepted = 0;
  bool goes_on = true;
  while (goes_on) {
    const SampledToken& token = chosen[num_accepted];
    if (is_in_its_slot && !drafts.empty()) ++sequence.num_unsettled;
    CommitToken(sequence, token);
    const bool was_guessed = num_accepted < drafts.size() && token.token == drafts[num_accepted];
    events_.back().was_guessed = was_guessed && !entry.quotes_others;
    if (was_guessed) ++num_accepted;
    goes_on = was_guessed && sequence.state != State::kFinished;
    if (goes_on && is_in_its_slot) ++sequence.computed;
  }
  if (!entry.quotes_others) {
    events_.back().num_wrong_guesses = static_cast<uint32_t>(drafts.size() - num_accepted);
  }
  draft_tokens_accepted_ += num_accepted;
  if (sequence.state == State::kFinished || sequence.drafter == nullptr) return;
  if (!drafts.empty()) {
    sequence.drafter->Learn(static_cast<int>(drafts.size()), static_cast<int>(num_accepted));
  }
  if (scheduler_.MayGuess()) sequence.drafter->Follow(sequence.DraftFrom(scheduler_.history()));
}

void Engine::CommitToken(Sequence& sequence, const SampledToken& sampled) {
  EngineEvent& event = AddEvent(sequence);
  if (sampled.token == kNoToken) {
    event.finish = FinishReason::kError;
  } else {
    Append(sequence, sampled.token, event);
    event.token = sampled;
    ++tokens_generated_;
    scheduler_.NameFullBlocks(sequence);
  }
  EndIfFinished(sequence, event);
}

void Engine::Append(Sequence& sequence, int32_t token, EngineEvent& event) {
  sequence.Append(token);
  event.finish = sequence.FinishedBy(token);
  if (event.finish == FinishReason::kStop) event.stop_token_id = token;
}

void Engine::EndIfFinished(Sequence& sequence, const EngineEvent& event) {
  if (!event.finish) return;
  scheduler_.Remove(sequence);
  if (sequence.request.num_unfinished == 0) Retire(sequence.request);
}

void Engine::ExpireDeadlines(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first.first <= now) {
    Request& request = *deadlines_.begin()->second;
    for (auto& sequence : request.sequences) {
      if (sequence->state == Sequence::State::kFinished) continue;
      AddEvent(*sequence).finish = FinishReason::kDeadline;
      scheduler_.Remove(*sequence);
    }
    Retire(request);
  }
}

// All outputs are finished. The request lives on until no step in flight names it.
void Engine::Retire(Request& request) {
  deadlines_.erase({request.given.deadline, request.given.request_id});
  suspects_.erase({request.given.priority, request.given.request_id});
  if (!request.admitted_at) --num_queued_requests_;
  auto node = requests_.extract(request.given.request_id);
  if (request.steps_in_flight > 0) retired_.emplace(&request, std::move(node.mapped()));
}

void Engine::ForgetEvents(uint64_t request_id, std::optional<uint32_t> sequence_index) {
  std::erase_if(events_, [&](const EngineEvent& event) {
    return event.request_id == request_id &&
           (!sequence_index || event.sequence_index == *sequence_index);
  });
}

std::vector<EngineEvent> Engine::TakeEvents() { return std::exchange(events_, {}); }

std::optional<uint64_t> Engine::ResetReplica() {
  const std::optional<uint64_t> killer = CountLoss();
  in_flight_.clear();
  retired_.clear();
  next_step_id_ = 1;
  scheduler_.Reset();
  for (auto& [id, request] : requests_) {
    request->steps_in_flight = 0;
    for (auto& sequence : request->sequences) {
      sequence->steps_in_flight = 0;
      sequence->samples_in_flight = 0;
      sequence->has_drafts_in_flight = false;
    }
    scheduler_.Enqueue(*request);
  }
  return killer;
}

void Engine::SetHostBlocks(int64_t num_host_blocks, int64_t num_prefetched_blocks) {
  scheduler_.SetHostBlocks(num_host_blocks, num_prefetched_blocks);
}

int64_t Engine::CachedPrefixTokens(const EngineRequest& request) const {
  return scheduler_.CachedPrefixTokens(request);
}

int64_t Engine::NumUncomputedTokens() const { return scheduler_.NumUncomputedTokens(); }

absl::Time Engine::NextWakeup() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first.first;
}

EngineStats Engine::Stats() const {
  EngineStats stats;
  scheduler_.FillStats(stats);
  stats.num_steps = num_steps_;
  stats.steps_in_flight = in_flight_.size();
  stats.tokens_generated = tokens_generated_;
  stats.draft_tokens_accepted = draft_tokens_accepted_;
  return stats;
}

void Engine::CheckInvariants() const {
  scheduler_.CheckInvariants();
  LS_CHECK_LE(static_cast<int>(in_flight_.size()), config_.max_steps_in_flight);
  int64_t num_queued = 0;
  for (const auto& [id, request] : requests_) {
    num_queued += request->admitted_at ? 0 : 1;
    LS_CHECK_GE(request->num_unfinished, 1) << "request " << id;
  }
  LS_CHECK_EQ(num_queued, num_queued_requests_);
  for (const auto& [request, owner] : retired_) {
    LS_CHECK_EQ(request->num_unfinished, 0) << "request " << request->given.request_id;
    LS_CHECK_GE(request->steps_in_flight, 1) << "request " << request->given.request_id;
  }
}

bool Engine::Idle() const { return requests_.empty() && in_flight_.empty(); }

}  // namespace lockstep::engine
