#include "runtime/controller/replica.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/wire.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep {

Replica::Replica(const ReplicaOptions& options, absl::Time now)
    : identity_(options.identity),
      vocab_size_(options.vocab_size),
      lease_(options.lease),
      join_timeout_(options.join_timeout),
      load_timeout_(options.load_timeout),
      step_deadline_(options.step_deadline),
      ranks_(std::make_unique<RankRoster>(identity_, now)) {}

int Replica::RankOf(const RankPort* port) const {
  return ranks_ == nullptr ? -1 : ranks_->RankOf(port);
}

std::string Replica::Detail() const {
  switch (state_) {
    case State::kJoining:
      return ranks_->Progress();
    case State::kServing:
      return "";
    case State::kLost:
      return why_lost_;
  }
  return "";
}

void Replica::BeginEpoch(uint64_t epoch, absl::Time now) {
  LS_CHECK_GT(epoch, identity_.epoch);
  LS_CHECK(!is_given_up_);
  LS_CHECK(state_ == State::kLost);
  identity_.epoch = epoch;
  ranks_ = std::make_unique<RankRoster>(identity_, now);
  state_ = State::kJoining;
}

void Replica::StartServing(engine::EngineConfig config) {
  LS_CHECK(state_ == State::kJoining && ranks_->AllReady());
  config.num_host_blocks = ranks_->FewestHostBlocks();
  config.num_prefetched_blocks = ranks_->FewestPrefetchedBlocks();
  if (engine_ == nullptr) {
    engine_ = std::make_unique<engine::Engine>(config);
  } else {
    engine_->SetHostBlocks(config.num_host_blocks, config.num_prefetched_blocks);
  }
  state_ = State::kServing;
}

std::optional<uint64_t> Replica::Lose(const grpc::Status& status, std::string why) {
  if (ranks_ != nullptr) ranks_->CloseAll(status);
  ranks_.reset();
  in_flight_.clear();
  state_ = State::kLost;
  why_lost_ = std::move(why);
  if (identity_.epoch > 0) ++num_losses_;  // in epoch 0, ranks placed by hand have yet to come
  return engine_ == nullptr ? std::nullopt : engine_->ResetReplica();
}

void Replica::GiveUp(std::string why) {
  LS_CHECK(state_ == State::kLost);
  is_given_up_ = true;
  why_lost_ = std::move(why);
}

void Replica::Schedule(absl::Time now) {
  while (std::optional<engine::StepPlan> plan = engine_->Schedule(now)) Send(*plan, now);
}

// Serialised once; every rank's stream shares the bytes.
void Replica::Send(const engine::StepPlan& plan, absl::Time now) {
  v1::ToRank message;
  EncodePlan(plan, message.mutable_plan());
  ranks_->SendAll(SerializeMessage(message));
  StepInFlight step{.step_id = plan.step_id, .sampling_slots = SamplingSlots(plan), .since = now};
  for (const engine::SlotWork& work : plan.work) step.num_tokens += work.num_rows();
  in_flight_.push_back(std::move(step));
}

absl::StatusOr<absl::Duration> Replica::Commit(const v1::StepResult& message, absl::Time now) {
  if (in_flight_.empty() || message.step_id() != in_flight_.front().step_id) {
    return absl::FailedPreconditionError(
        absl::StrCat("it sent the result of step ", message.step_id(), ", expected was ",
                     in_flight_.empty() ? 0 : in_flight_.front().step_id));
  }
  const StepInFlight& step = in_flight_.front();
  ASSIGN_OR_RETURN(const engine::StepResult result,
                   DecodeResult(message, step.sampling_slots, vocab_size_));
  RETURN_IF_ERROR(engine_->Commit(result));
  const absl::Duration taken = now - step.since;
  step_deadline_.Finished(step.num_tokens, taken);
  in_flight_.pop_front();
  // The time of a step that ran ahead counts from when its turn came.
  if (!in_flight_.empty()) in_flight_.front().since = now;
  return taken;
}

// Progress that heartbeats show extends the time: a long prefill is busy, not dead.
absl::Time Replica::StepOverdueAt() const {
  if (in_flight_.empty()) return absl::InfiniteFuture();
  const StepInFlight& step = in_flight_.front();
  return std::max(step.since, ranks_->last_progress()) + step_deadline_.For(step.num_tokens);
}

// A file system that hangs lets heartbeats go on.
absl::Time Replica::LoadOverdueAt() const {
  if (state_ != State::kJoining || ranks_->LongestSilent() < 0) return absl::InfiniteFuture();
  return ranks_->last_progress() + load_timeout_;
}

std::optional<Replica::Overdue> Replica::FindOverdue(absl::Time now) const {
  if (ranks_ == nullptr) return std::nullopt;
  const int silent = ranks_->LongestSilent();
  if (silent >= 0 && now >= ranks_->last_seen(silent) + lease_) {
    return Overdue{silent, absl::StrCat("nothing heard of it for ", absl::FormatDuration(lease_))};
  }
  if (now >= ranks_->waiting_for_ranks_since() + join_timeout_) {
    return Overdue{ranks_->FirstMissing(), absl::StrCat("ranks that did not join within ",
                                                        absl::FormatDuration(join_timeout_),
                                                        " of the first: ", ranks_->MissingRanks())};
  }
  if (now >= LoadOverdueAt()) {
    return Overdue{ranks_->LeastLoaded(), absl::StrCat("no rank has come further for ",
                                                       absl::FormatDuration(load_timeout_))};
  }
  if (now < StepOverdueAt()) return std::nullopt;
  const StepInFlight& step = in_flight_.front();
  return Overdue{
      ranks_->FurthestBehind(),
      absl::StrCat("step ", step.step_id, " has no result after ",
                   absl::FormatDuration(absl::Trunc(now - step.since, absl::Milliseconds(1))))};
}

absl::Time Replica::OverdueAt() const {
  if (ranks_ == nullptr) return absl::InfiniteFuture();
  const int silent = ranks_->LongestSilent();
  const absl::Time lease_end =
      silent >= 0 ? ranks_->last_seen(silent) + lease_ : absl::InfiniteFuture();
  return std::min({lease_end, StepOverdueAt(), LoadOverdueAt(),
                   ranks_->waiting_for_ranks_since() + join_timeout_});
}

void Replica::FillStatus(absl::Time now, v1::GetStatusResponse* response) const {
  using Proto = v1::ReplicaStatus;
  Proto& status = *response->add_replicas();
  status.set_replica(index());
  status.set_state(state_ == State::kServing   ? Proto::STATE_SERVING
                   : state_ == State::kJoining ? Proto::STATE_JOINING
                   : is_given_up_              ? Proto::STATE_GIVEN_UP
                                               : Proto::STATE_LOST);
  status.set_epoch(epoch());
  status.set_detail(Detail());
  status.set_num_losses(num_losses_);
  if (ranks_ != nullptr) ranks_->FillStatus(now, response);
  if (engine_ == nullptr) return;
  const engine::EngineStats stats = engine_->Stats();
  status.set_num_waiting(stats.num_waiting);
  status.set_num_running(stats.num_running);
  status.set_kv_blocks_in_use(stats.blocks_in_use);
  response->set_num_waiting(response->num_waiting() + stats.num_waiting);
  response->set_num_running(response->num_running() + stats.num_running);
  if (serving()) {
    response->set_kv_blocks_total(response->kv_blocks_total() + stats.blocks_total);
    response->set_host_blocks_total(response->host_blocks_total() + stats.host_blocks_total);
  }
  response->set_kv_blocks_in_use(response->kv_blocks_in_use() + stats.blocks_in_use);
  response->set_kv_blocks_cached(response->kv_blocks_cached() + stats.blocks_cached);
  response->set_host_blocks_in_use(response->host_blocks_in_use() + stats.host_blocks_in_use);
  response->set_kv_blocks_offloaded(response->kv_blocks_offloaded() + stats.blocks_offloaded);
  response->set_kv_blocks_restored(response->kv_blocks_restored() + stats.blocks_restored);
  response->set_num_preemptions(response->num_preemptions() + stats.num_preemptions);
  response->set_num_steps(response->num_steps() + stats.num_steps);
  response->set_prompt_tokens_computed(response->prompt_tokens_computed() +
                                       stats.prompt_tokens_computed);
  response->set_prompt_tokens_cached(response->prompt_tokens_cached() + stats.prompt_tokens_cached);
  response->set_draft_tokens(response->draft_tokens() + stats.draft_tokens);
  response->set_draft_tokens_accepted(response->draft_tokens_accepted() +
                                      stats.draft_tokens_accepted);
  response->set_tokens_generated(response->tokens_generated() + stats.tokens_generated);
}

}  // namespace lockstep
