#include "runtime/controller/core.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/replica_choice.h"

namespace lockstep {
namespace {

// Of the replica with this engine, for a request.
ReplicaLoad LoadOf(const engine::Engine& engine, const engine::EngineRequest& request) {
  const engine::EngineStats stats = engine.Stats();
  return {.queue_is_full = !engine.CheckQueue().ok(),
          .has_room = engine.HasRoomFor(request),
          .num_sequences = stats.num_waiting + stats.num_running,
          .num_uncomputed_tokens = engine.NumUncomputedTokens(),
          .num_cached_tokens = engine.CachedPrefixTokens(request)};
}

bool EndsEarly(engine::FinishReason reason) {
  return reason != engine::FinishReason::kStop && reason != engine::FinishReason::kLength;
}

}  // namespace

ControllerCore::ControllerCore(CoreConfig config, CoreOutput& output, absl::Time now)
    : config_(std::move(config)), output_(output) {
  LS_CHECK_GE(config_.num_replicas, 1);
  for (int index = 0; index < config_.num_replicas; ++index) {
    const ReplicaOptions options{.identity = IdentityOf(index, config_.first_epoch),
                                 .vocab_size = config_.limits.vocab_size,
                                 .lease = config_.lease,
                                 .join_timeout = config_.join_timeout,
                                 .load_timeout = config_.load_timeout,
                                 .step_deadline = config_.step_deadline};
    replicas_.push_back(std::make_unique<Replica>(options, now));
  }
  SetPhase(Phase::kStarting, Progress());
}

ControllerCore::~ControllerCore() = default;

// --- time ---

void ControllerCore::Advance(absl::Time now) {
  advanced_at_ = now;
  LoseOverdue(now);
  if (now >= RecoveryEnd()) {
    FailNow(absl::StrCat("no new ranks served within ",
                         absl::FormatDuration(config_.recovery_window), ": ", state_.detail));
  }
  for (auto& replica : replicas_) {
    if (replica->engine() == nullptr) continue;
    replica->engine()->ExpireDeadlines(now);
    if (replica->serving()) replica->Schedule(now);
    DeliverEvents(*replica);
  }
  ShareQueues(now);
  meter_.Present(requests_.size(), now);
  EndDrainIfEmpty();
}

absl::Time ControllerCore::NextWakeup() const {
  absl::Time wakeup = RecoveryEnd();
  for (const auto& replica : replicas_) {
    wakeup = std::min(wakeup, std::max(replica->OverdueAt(), judges_from_));
    if (replica->engine() != nullptr) wakeup = std::min(wakeup, replica->engine()->NextWakeup());
  }
  return wakeup;
}

void ControllerCore::DeliverEvents(Replica& replica) {
  if (replica.engine() == nullptr) return;
  for (engine::EngineEvent& event : replica.engine()->TakeEvents()) {
    const uint64_t number = event.request_id;
    RequestTable::Entry* entry = requests_.Find(number);
    if (entry == nullptr) continue;
    if (event.token) MeterToken(*entry, event);
    entry->ended_early |= event.finish.has_value() && EndsEarly(*event.finish);
    const bool is_last =
        event.finish.has_value() && requests_.FinishOutput(number, event.sequence_index);
    output_.Deliver(std::move(event));
    if (is_last) Finish(number, *entry);
  }
}

void ControllerCore::MeterToken(RequestTable::Entry& entry, const engine::EngineEvent& event) {
  if (++entry.num_output_tokens == 1) meter_.Admitted(event.admitted_at - entry.accepted_at);
  absl::Time& last = entry.last_token_at[event.sequence_index];
  if (last == absl::InfinitePast()) {
    meter_.FirstToken(advanced_at_ - entry.accepted_at,
                      entry.num_prompt_tokens - int64_t{event.num_cached_prompt_tokens});
  } else {
    meter_.NextToken(advanced_at_ - last);
  }
  last = advanced_at_;
}

void ControllerCore::Finish(uint64_t number, const RequestTable::Entry& entry) {
  if (entry.ended_early) {
    ++counters_.aborted;
  } else {
    meter_.Finished(advanced_at_ - entry.accepted_at, entry.num_output_tokens);
    ++counters_.finished;
  }
  if (entry.killer) killer_prompts_.Forgive(*entry.killer);
  ForgetRequest(number);
}

// --- requests ---

absl::Status ControllerCore::Add(engine::EngineRequest request, std::string name, absl::Time now) {
  RETURN_IF_ERROR(ServingState::AdmissionBy(state_).status());
  RETURN_IF_ERROR(requests_.CheckNew(name));
  RETURN_IF_ERROR(killer_prompts_.Check(request.prompt, now));
  const std::optional<size_t> killer = killer_prompts_.Find(request.prompt);
  if (killer) request.num_losses = engine::kLossesOfASuspect;
  Replica& replica = *ChooseReplica(request);
  const uint64_t number = request.request_id;
  const int num_outputs = request.num_outputs;
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  RETURN_IF_ERROR(replica.engine()->Add(std::move(request)));
  ++counters_.accepted;
  RequestTable::Entry& entry =
      requests_.Insert(number, std::move(name), num_outputs, replica.index());
  entry.accepted_at = now;
  entry.num_prompt_tokens = num_prompt_tokens;
  entry.killer = killer;
  meter_.Accepted(num_prompt_tokens);
  open_calls_.insert(number);
  return absl::OkStatus();
}

absl::Status ControllerCore::CheckAdd(const engine::EngineRequest& request, absl::Time now) {
  RETURN_IF_ERROR(ServingState::AdmissionBy(state_).status());
  RETURN_IF_ERROR(killer_prompts_.Check(request.prompt, now));
  return ChooseReplica(request)->engine()->CheckAdd(request);
}

// While none serves, requests wait with the others on those that have an engine.
bool ControllerCore::TakesRequests(const Replica& replica) const {
  return replica.engine() != nullptr && (replica.serving() || !AnyServing());
}

bool ControllerCore::QueuesAreFull() const {
  bool any = false;
  for (const auto& replica : replicas_) {
    if (!TakesRequests(*replica)) continue;
    if (replica->engine()->CheckQueue().ok()) return false;
    any = true;
  }
  return any;
}

Replica* ControllerCore::ChooseReplica(const engine::EngineRequest& request) {
  std::vector<Replica*> replicas;
  for (auto& replica : replicas_) {
    if (TakesRequests(*replica)) replicas.push_back(replica.get());
  }
  LS_CHECK(!replicas.empty()) << "requests are accepted, but there is no engine";
  if (replicas.size() == 1) return replicas.front();
  std::vector<ReplicaLoad> loads;
  for (const Replica* replica : replicas) loads.push_back(LoadOf(*replica->engine(), request));
  return replicas[static_cast<size_t>(ChooseReplicaBy(loads))];
}

void ControllerCore::Cancel(uint64_t number) {
  RequestTable::Entry* entry = requests_.Find(number);
  if (entry == nullptr) return;
  replicas_[entry->replica]->engine()->Abort(number);
  ++counters_.aborted;
  ForgetRequest(number);
}

bool ControllerCore::Abort(const std::string& name, const grpc::Status& status) {
  const std::optional<uint64_t> number = requests_.FindByName(name);
  if (!number) return false;
  EndOne(*number, v1::FINISH_REASON_ABORTED, status);
  return true;
}

void ControllerCore::FinishOutput(uint64_t number, uint32_t sequence_index) {
  RequestTable::Entry* entry = requests_.Find(number);
  if (entry == nullptr) return;
  replicas_[entry->replica]->engine()->FinishOutput(number, sequence_index);
  if (requests_.FinishOutput(number, sequence_index)) Finish(number, *entry);
}

void ControllerCore::CallEnded(uint64_t number) { open_calls_.erase(number); }

void ControllerCore::EndOne(uint64_t number, v1::FinishReason reason, const grpc::Status& status) {
  output_.End(number, reason, status);
  Cancel(number);
}

void ControllerCore::EndRequests(v1::FinishReason reason, const grpc::Status& status) {
  for (const uint64_t number : requests_.All()) EndOne(number, reason, status);
}

void ControllerCore::ForgetRequest(uint64_t number) {
  requests_.Remove(number);
  output_.Forget(number);
}

// Each goes where it will be served first; they were accepted, so a full queue takes them too.
void ControllerCore::MoveRequestsToLivingReplicas() {
  if (!AnyServing()) return;
  for (auto& replica : replicas_) {
    if (replica->serving() || replica->engine() == nullptr) continue;
    DeliverEvents(*replica);
    for (engine::UnfinishedRequest& request : replica->engine()->Evacuate()) {
      Replica& next = *ChooseReplica(request.given);
      requests_.Find(request.given.request_id)->replica = next.index();
      next.engine()->Adopt(std::move(request));
    }
  }
}

// What never ran and finds no room where it waits goes where there is some: to a replica that
// serves again, or has ended its own. It stays where it would go if it came now: its prefix may be
// cached there.
void ControllerCore::ShareQueues(absl::Time now) {
  for (auto& to : replicas_) {
    if (!to->serving()) continue;
    bool has_more = false;
    while (Replica* from = QueueToShare(*to)) {
      const uint64_t number = from->engine()->StrandedRequest()->request_id;
      requests_.Find(number)->replica = to->index();
      to->engine()->Adopt(from->engine()->Release(number));
      has_more = true;
    }
    if (!has_more) continue;
    to->Schedule(now);
    DeliverEvents(*to);
  }
}

Replica* ControllerCore::QueueToShare(const Replica& to) {
  for (auto& from : replicas_) {
    if (from.get() == &to || !from->serving()) continue;
    const engine::EngineRequest* request = from->engine()->StrandedRequest();
    if (request == nullptr || !to.engine()->HasRoomFor(*request)) continue;
    std::array<ReplicaLoad, 2> loads = {LoadOf(*from->engine(), *request),
                                        LoadOf(*to.engine(), *request)};
    loads[0].num_sequences -= request->num_outputs;  // itself
    loads[0].num_uncomputed_tokens -= std::ssize(request->prompt);
    if (ChooseReplicaBy(loads) == 1) return from.get();
  }
  return nullptr;
}

// --- control ---

void ControllerCore::BeginDrain() {
  state_.draining = true;
  SetPhase(state_.phase, state_.detail);
  EndDrainIfEmpty();
}

void ControllerCore::EndAll(const std::string& reason) {
  state_.draining = ended_ = true;
  SetPhase(Phase::kFailed, reason);
  EndRequests(v1::FINISH_REASON_ABORTED, grpc::Status(grpc::StatusCode::UNAVAILABLE, reason));
  for (auto& replica : replicas_) {
    if (replica->state() == Replica::State::kLost) continue;
    if (config_.keeps_ranks) {
      replica->Lose(grpc::Status(grpc::StatusCode::UNAVAILABLE, reason), reason);
      continue;
    }
    replica->ranks().ShutDownAll(reason);
    replica->Lose(grpc::Status::OK, reason);
  }
  recovery_deadline_ = absl::InfiniteFuture();
  EndDrain();
}

// Who closed before a slow client has read all would cut its stream short.
void ControllerCore::EndDrainIfEmpty() {
  if (state_.draining && requests_.empty() && open_calls_.empty()) EndDrain();
}

void ControllerCore::EndDrain() {
  if (std::exchange(drained_, true)) return;
  ControllerEvent event = EventOf(ControllerEvent::Kind::kDrained);
  event.served = meter_.Load();
  if (config_.predict_speed != nullptr && event.served.num_outputs > 0) {
    event.prediction = config_.predict_speed(event.served);  // nobody is kept waiting any more
  }
  output_.Tell(event);
  output_.Drained();
}

// --- what others see ---

bool ControllerCore::AnyServing() const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [](const auto& replica) { return replica->serving(); });
}

// Of the replicas that do not serve.
std::string ControllerCore::Progress() const {
  std::string progress;
  for (const auto& replica : replicas_) {
    if (replica->serving()) continue;
    if (!progress.empty()) progress += "; ";
    if (replicas_.size() > 1) absl::StrAppend(&progress, "replica ", replica->index(), ": ");
    progress += replica->Detail();
  }
  return progress;
}

void ControllerCore::SetPhase(Phase phase, std::string detail) {
  state_.phase = phase;
  state_.detail = std::move(detail);
  if (has_capacity_) state_.capacity = Capacity{config_.limits, agreed_kv_blocks_};
  output_.Publish(state_);
}

v1::GetStatusResponse ControllerCore::Status(absl::Time now) const {
  v1::GetStatusResponse response;
  using Proto = v1::GetStatusResponse;
  response.set_state(state_.phase == Phase::kFailed       ? Proto::STATE_FAILED
                     : state_.draining                    ? Proto::STATE_DRAINING
                     : state_.phase == Phase::kServing    ? Proto::STATE_SERVING
                     : state_.phase == Phase::kRecovering ? Proto::STATE_RECOVERING
                                                          : Proto::STATE_STARTING);
  response.set_detail(state_.detail);
  response.set_requests_accepted(counters_.accepted);
  response.set_requests_finished(counters_.finished);
  response.set_requests_aborted(counters_.aborted);
  for (const auto& replica : replicas_) replica->FillStatus(now, &response);
  const ServedLoad load = meter_.Load();
  v1::ServedLoad* served = response.mutable_served();
  served->set_num_outputs(load.num_outputs);
  served->set_mean_prompt_tokens(load.mean_prompt_tokens);
  served->set_mean_output_tokens(load.mean_output_tokens);
  served->set_mean_requests(load.mean_requests);
  served->set_ttft_ms(load.ttft_ms);
  served->set_tpot_ms(load.tpot_ms);
  *response.mutable_measured() = meter_.Measurements();
  return response;
}

ControllerEvent ControllerCore::EventOf(ControllerEvent::Kind kind) const {
  ControllerEvent event;
  event.kind = kind;
  return event;
}

ControllerEvent ControllerCore::EventOf(ControllerEvent::Kind kind, const Replica& replica,
                                        int rank, absl::Time now) const {
  ControllerEvent event = EventOf(kind);
  event.replica = replica.index();
  event.epoch = replica.epoch();
  if (rank < 0 || replica.state() == Replica::State::kLost) return event;
  const v1::RankStatus status = replica.ranks().StatusOf(rank, now);
  event.rank = rank;
  event.tp_rank = status.tp_rank();
  event.pipeline_stage = status.pipeline_stage();
  event.host = status.host();
  event.pid = status.pid();
  event.bytes_done = status.loaded_bytes();
  event.bytes_total = status.shard_bytes();
  event.weight_bytes = status.weight_bytes();
  event.mapped_bytes = status.mapped_bytes();
  return event;
}

void ControllerCore::CheckInvariants() {
  int64_t num_requests = 0;
  for (auto& replica : replicas_) {
    if (replica->engine() == nullptr) continue;
    replica->engine()->CheckInvariants();
    const int64_t unfinished = replica->engine()->num_requests();
    LS_CHECK(unfinished == 0 || replica->serving() || !AnyServing());
    num_requests += unfinished;
  }
  LS_CHECK_EQ(num_requests, static_cast<int64_t>(requests_.All().size()));
  for (const uint64_t number : requests_.All()) LS_CHECK(open_calls_.contains(number)) << number;
}

}  // namespace lockstep
