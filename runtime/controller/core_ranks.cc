// ControllerCore: the ranks' side.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/core.h"
#include "runtime/controller/kv_shortage.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

constexpr size_t kMaxFailureBytes = 4096;                       // of a rank's last words
constexpr absl::Duration kLatestLook = absl::Milliseconds(50);  // at what is overdue
constexpr int kHeartbeatsToHear = 2;

std::optional<RankCheck::Link> LinkOf(bool is_there, const v1::LinkSpeed& speed) {
  if (!is_there) return std::nullopt;
  return RankCheck::Link{speed.latency_us(), speed.bytes_per_second()};
}

std::optional<RankCheck::Gpu> GpuOf(const v1::Preflight& preflight) {
  if (!preflight.has_gpu()) return std::nullopt;
  const v1::Gpu& told = preflight.gpu();
  RankCheck::Gpu gpu = {.index = told.index(),
                        .name = told.name(),
                        .memory_bytes = told.memory_bytes(),
                        .pci_bus_id = told.pci_bus_id(),
                        .numa_node = told.numa_node(),
                        .nearest_nic = told.nearest_nic(),
                        .nic_distance = told.nic_distance(),
                        .idle_nic = told.idle_nic(),
                        .links = {}};
  for (const v1::GpuLink& link : told.links()) {
    gpu.links[link.pci_bus_id()] = static_cast<DeviceLink>(link.kind());
  }
  return gpu;
}

RankCheck CheckOf(const v1::Preflight& preflight) {
  return {.node = preflight.node(),
          .needed_bytes = preflight.needed_memory_bytes(),
          .available_bytes = preflight.available_memory_bytes(),
          .tp = LinkOf(preflight.has_tensor_parallel(), preflight.tensor_parallel()),
          .next_stage = LinkOf(preflight.has_next_stage(), preflight.next_stage()),
          .gpu = GpuOf(preflight)};
}

std::optional<RankMemory> MemoryOf(const v1::KvRoom& room) {
  if (!room.has_memory()) return std::nullopt;
  const v1::GpuMemory& told = room.memory();
  return RankMemory{.device = {.total_bytes = told.total_bytes(),
                               .budget_bytes = told.budget_bytes(),
                               .held_bytes = told.weight_bytes() + told.step_bytes(),
                               .other_bytes = told.other_bytes(),
                               .foreign_bytes = told.foreign_bytes(),
                               .left_bytes = told.left_bytes()},
                    .weight_bytes = told.weight_bytes(),
                    .batched_token_bytes = told.batched_token_bytes()};
}

}  // namespace

void ControllerCore::RankSaid(std::shared_ptr<RankPort> port, const v1::FromRank& message,
                              absl::Time now) {
  for (auto& replica : replicas_) {
    const int rank = replica->RankOf(port.get());
    if (rank < 0) continue;
    replica->ranks().Saw(rank, now);
    const absl::Status handled = Handle(*replica, rank, message, now);
    if (handled.ok()) return;
    return LoseReplica(
        *replica, {rank, ControllerEvent::Cause::kRankComplained, std::string(handled.message())},
        now);
  }
  if (message.has_hello()) Greet(std::move(port), message.hello(), now);
  // Else it was refused, or is of a lost epoch: nobody listens.
}

void ControllerCore::RankClosed(const RankPort& port, const std::string& why, absl::Time now) {
  if (ended_) return;
  for (auto& replica : replicas_) {
    const int rank = replica->RankOf(&port);
    if (rank < 0) continue;
    return LoseReplica(*replica, {rank, ControllerEvent::Cause::kRankVanished, why}, now);
  }
}

absl::Status ControllerCore::Handle(Replica& replica, int rank, const v1::FromRank& message,
                                    absl::Time now) {
  RankRoster& ranks = replica.ranks();
  switch (message.message_case()) {
    case v1::FromRank::kResult: {
      RETURN_IF_ERROR(ranks.CheckMayReport(rank));
      ASSIGN_OR_RETURN(const absl::Duration taken, replica.Commit(message.result(), now));
      meter_.StepDone(taken);
      return absl::OkStatus();
    }
    case v1::FromRank::kHeartbeat:
      return ranks.OnHeartbeat(rank, message.heartbeat(), now);
    case v1::FromRank::kPreflight: {
      RETURN_IF_ERROR(ranks.OnPreflight(rank, message.preflight()));
      ControllerEvent event = EventOf(ControllerEvent::Kind::kRankChecked, replica, rank, now);
      event.check = CheckOf(message.preflight());
      output_.Tell(event);
      return absl::OkStatus();
    }
    case v1::FromRank::kLoading:
      RETURN_IF_ERROR(ranks.OnLoading(rank, message.loading(), now));
      output_.Tell(EventOf(ControllerEvent::Kind::kRankLoading, replica, rank, now));
      return absl::OkStatus();
    case v1::FromRank::kLoaded: {
      RETURN_IF_ERROR(ranks.OnLoaded(rank, message.loaded(), now));
      ControllerEvent event = EventOf(ControllerEvent::Kind::kRankLoaded, replica, rank, now);
      event.message = message.loaded().backend();
      output_.Tell(event);
      SetPhase(state_.phase, Progress());
      if (!ranks.AllLoaded()) return absl::OkStatus();
      if (ranks.MustRehearse()) {
        ranks.Rehearse();
      } else {
        StartRanks(replica, now);
      }
      return absl::OkStatus();
    }
    case v1::FromRank::kRehearsed: {
      RETURN_IF_ERROR(ranks.OnRehearsed(rank, message.rehearsed(), now));
      ControllerEvent event = EventOf(ControllerEvent::Kind::kRankRehearsed, replica, rank, now);
      event.memory = MemoryOf(message.rehearsed().kv_room());
      output_.Tell(event);
      if (ranks.AllRehearsed()) StartRanks(replica, now);
      return absl::OkStatus();
    }
    case v1::FromRank::kReady:
      RETURN_IF_ERROR(ranks.OnReady(rank, message.ready()));
      if (ranks.AllReady()) StartEngine(replica);
      return absl::OkStatus();
    case v1::FromRank::kFailure:
      return absl::InternalError(
          absl::StrCat("it failed: ", message.failure().message().substr(0, kMaxFailureBytes)));
    case v1::FromRank::kHello:
    case v1::FromRank::MESSAGE_NOT_SET:
      break;
  }
  return absl::FailedPreconditionError("it sent an unknown message or a second Hello");
}

// All ranks are loaded. Those that cannot serve are refused: they would come again with the same.
void ControllerCore::StartRanks(Replica& replica, absl::Time now) {
  int at = 0;
  const absl::Status agreed = Agree(replica.ranks(), at);
  if (agreed.ok()) return replica.ranks().StartServing(agreed_kv_blocks_, HostBlocks(replica));
  LoseReplica(replica,
              {at, ControllerEvent::Cause::kRankComplained, std::string(agreed.message()),
               ToGrpcStatus(agreed).error_code()},
              now);
}

int64_t ControllerCore::HostBlocks(const Replica& replica) const {
  return config_.engine.enable_prefix_cache ? replica.ranks().FewestHostBlocks() : 0;
}

// On how the ranks compute and on the cache; or says what it would take, and at which rank.
absl::Status ControllerCore::Agree(const RankRoster& ranks, int& at) {
  // Others may have started since these joined.
  RETURN_IF_ERROR(CheckAgreedNumerics(ranks.FirstHello()->numerics()));
  const int64_t block_size = config_.engine.block_size;
  at = ranks.SmallestRank();
  const v1::KvRoom& room = ranks.kv_room(at);
  const int64_t fitting = room.max_kv_blocks();
  const int64_t wanted_tokens = std::max<int64_t>(config_.max_model_len, 2);
  const int64_t needed = (wanted_tokens + block_size - 1) / block_size;
  if (fitting < needed && agreed_kv_blocks_ == 0) {
    return absl::ResourceExhaustedError(
        DescribeKvShortage({.rank = absl::StrCat("rank ", at),
                            .max_model_len = config_.max_model_len,
                            .block_size = block_size,
                            .fitting_blocks = fitting,
                            .needed_blocks = needed,
                            .block_bytes = ranks.loaded(at).kv_block_bytes(),
                            .max_batched_tokens = config_.engine.max_batched_tokens,
                            .max_num_seqs = config_.engine.max_num_seqs,
                            .is_asked_for = room.is_asked_for(),
                            .is_fp8 = absl::EndsWith(ranks.FirstHello()->numerics().dtype(), "fp8"),
                            .memory = MemoryOf(room)}));
  }
  at = ranks.TightestRank();
  const int64_t most = ranks.kv_room(at).most_kv_blocks();
  if (agreed_kv_blocks_ > most) {
    return absl::ResourceExhaustedError(absl::StrCat("the new ranks have room for ", most,
                                                     " KV blocks, the first ones had ",
                                                     agreed_kv_blocks_));
  }
  if (agreed_kv_blocks_ == 0) agreed_kv_blocks_ = fitting;
  if (!agreed_numerics_.has_value()) agreed_numerics_ = ranks.FirstHello()->numerics();
  return absl::OkStatus();
}

// All ranks are ready. Requests that waited go on.
void ControllerCore::StartEngine(Replica& replica) {
  engine::EngineConfig& config = config_.engine;
  if (!std::exchange(has_capacity_, true)) {
    config.num_blocks = agreed_kv_blocks_;
    config.max_model_len =
        config_.max_model_len > 0
            ? config_.max_model_len
            : std::min(config_.max_position_embeddings, agreed_kv_blocks_ * config.block_size);
    config_.limits.max_model_len = config.max_model_len;
  }
  replica.StartServing(config);
  told_refusals_.clear();
  recovery_deadline_ = absl::InfiniteFuture();
  MoveRequestsToLivingReplicas();
  ControllerEvent event = EventOf(ControllerEvent::Kind::kServing);
  event.replica = replica.index();
  event.epoch = replica.epoch();
  event.num_kv_blocks = agreed_kv_blocks_;
  event.num_host_blocks = HostBlocks(replica);
  event.max_model_len = config_.limits.max_model_len;
  output_.Tell(event);  // before anyone can see that it serves
  SetPhase(Phase::kServing, Progress());
}

// One rank is enough to lose them all: they move in lockstep.
void ControllerCore::LoseReplica(Replica& replica, const Loss& loss, absl::Time now) {
  ControllerEvent event = EventOf(ControllerEvent::Kind::kRankLost, replica, loss.rank, now);
  event.cause = loss.cause;
  event.message = absl::StrCat(replica.ranks().Describe(loss.rank, now), ": ", loss.why);
  for (int each = 0; each < config_.grid.world_size(); ++each) {
    event.ranks.push_back(replica.ranks().Describe(each, now));
  }
  if (replicas_.size() > 1) {
    event.message = absl::StrCat("replica ", replica.index(), ", ", event.message);
  }
  output_.Tell(event);  // while its ranks are as they were
  CreditLoading(replica, now);
  DropReplica(
      replica,
      grpc::Status(loss.told_to_ranks, absl::StrCat("the replica is lost: ", event.message)),
      event.message);
  if (AnyServing()) {
    SetPhase(Phase::kServing, Progress());
  } else if (config_.recovery_window > absl::ZeroDuration()) {
    BeginRecovery(now);
    SetPhase(has_capacity_ ? Phase::kRecovering : Phase::kStarting, event.message);
  } else {
    FailNow(event.message);
  }
}

// The first loss begins it: were each to begin it anew, ranks that come and fail would never end
// it. The time that ranks loaded does not count.
void ControllerCore::BeginRecovery(absl::Time now) {
  if (config_.recovery_window <= absl::ZeroDuration()) return;
  recovery_deadline_ = std::min(recovery_deadline_, now + config_.recovery_window);
}

// Before a replica is dropped.
void ControllerCore::CreditLoading(const Replica& replica, absl::Time now) {
  const bool was_loading =
      replica.state() == Replica::State::kJoining && replica.ranks().AllJoined();
  if (was_loading) recovery_deadline_ += now - replica.ranks().all_joined_at();
}

// Loading may take longer, and ends by itself. Joining does not.
absl::Time ControllerCore::RecoveryEnd() const {
  const bool any_loads = std::any_of(replicas_.begin(), replicas_.end(), [](const auto& replica) {
    return replica->state() == Replica::State::kJoining && replica->ranks().AllJoined();
  });
  return any_loads ? absl::InfiniteFuture() : recovery_deadline_;
}

// Who looks late was held up itself (stopped, or without a core): what ranks said meanwhile is
// still on its way here, so they have time for a few words more.
void ControllerCore::LoseOverdue(absl::Time now) {
  for (auto& replica : replicas_) {
    const absl::Time due = std::max(replica->OverdueAt(), judges_from_);
    if (now < due) continue;
    if (now > due + kLatestLook) {
      judges_from_ = now + kHeartbeatsToHear * config_.heartbeat_interval;
      return;
    }
    const auto overdue = replica->FindOverdue(now);
    LoseReplica(*replica, {overdue->rank, ControllerEvent::Cause::kRankVanished, overdue->why},
                now);
  }
}

void ControllerCore::DropReplica(Replica& replica, const grpc::Status& status,
                                 const std::string& why) {
  const std::optional<uint64_t> killer = replica.Lose(status, why);
  if (killer.has_value()) EndKiller(replica, *killer, why);
  // Until something serves, what was agreed binds only replicas that were told of it.
  const bool others_know = std::any_of(replicas_.begin(), replicas_.end(), [](const auto& other) {
    return other->state() == Replica::State::kJoining && other->ranks().WereToldToStart();
  });
  if (!has_capacity_ && !others_know) agreed_kv_blocks_ = 0;
  MoveRequestsToLivingReplicas();
}

// Were it tried again, the server would sooner or later give up all requests for it.
void ControllerCore::EndKiller(Replica& replica, uint64_t number, const std::string& why) {
  DeliverEvents(replica);
  const std::string end = absl::StrCat(
      "request ", requests_.Find(number)->name,
      " is not tried again: it seems to kill its ranks, which were lost once more while "
      "they computed it alone (",
      why, ")");
  killer_prompts_.Add(replica.engine()->given(number).prompt, advanced_at_);
  EndOne(number, v1::FINISH_REASON_ABORTED, grpc::Status(grpc::StatusCode::INTERNAL, end));
  ControllerEvent event = EventOf(ControllerEvent::Kind::kWarning);
  event.message = end;
  output_.Tell(event);
}

void ControllerCore::Fail(const std::string& reason) {
  if (state_.phase != Phase::kFailed) FailNow(reason);
}

void ControllerCore::FailNow(const std::string& reason) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, reason);
  for (auto& replica : replicas_) {
    if (replica->state() != Replica::State::kLost) DropReplica(*replica, status, reason);
  }
  recovery_deadline_ = absl::InfiniteFuture();
  ControllerEvent event = EventOf(ControllerEvent::Kind::kFailed);
  event.message = reason;
  output_.Tell(event);
  SetPhase(Phase::kFailed, reason);
  EndRequests(v1::FINISH_REASON_ABORTED, status);
}

void ControllerCore::BeginEpoch(int index, uint64_t epoch, absl::Time now) {
  Replica& replica = *replicas_[index];
  if (epoch <= replica.epoch() || ended_) return;
  const std::string why =
      absl::StrCat("epoch ", replica.epoch(), " ended, epoch ", epoch, " begins");
  if (replica.state() != Replica::State::kLost) {
    CreditLoading(replica, now);
    DropReplica(replica, grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, why), why);
  }
  replica.BeginEpoch(epoch, now);
  if (!AnyServing() && has_capacity_) BeginRecovery(now);
  TellProgress();
}

void ControllerCore::GiveUpReplica(int index, const std::string& reason) {
  if (ended_ || state_.phase == Phase::kFailed) return;
  Replica& replica = *replicas_[index];
  if (replica.state() != Replica::State::kLost) {
    DropReplica(replica, grpc::Status(grpc::StatusCode::UNAVAILABLE, reason), reason);
  }
  replica.GiveUp(reason);
  TellProgress();
}

void ControllerCore::TellProgress() {
  const Phase waiting = has_capacity_ ? Phase::kRecovering : Phase::kStarting;
  SetPhase(AnyServing() ? Phase::kServing : waiting, Progress());
}

}  // namespace lockstep
