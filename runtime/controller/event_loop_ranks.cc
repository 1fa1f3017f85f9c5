// EventLoop: the ranks' side and the state that others see.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/event_loop.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

constexpr size_t kMaxFailureBytes = 4096;  // of a rank's last words

}  // namespace

// --- ranks ---

void EventLoop::RankSaid(std::shared_ptr<RankLink> link, v1::FromRank message) {
  queue_.Push([this, link = std::move(link), message = std::move(message)]() mutable {
    if (message.has_hello()) {
      Greet(std::move(link), message.hello());
    } else {
      Hear(link.get(), message);
    }
  });
}

void EventLoop::RankClosed(std::shared_ptr<RankLink> link, std::string why) {
  queue_.Push([this, link = std::move(link), why = std::move(why)] {
    const int rank = replica_ == nullptr ? -1 : replica_->RankOf(link.get());
    if (rank >= 0 && !ended_) LoseReplica(rank, why);
  });
}

void EventLoop::Greet(std::shared_ptr<RankLink> link, const v1::Hello& hello) {
  if (replica_ == nullptr) {
    link->Close(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                             absl::StrCat("no ranks are wanted now: ", detail_)));
    return;
  }
  const absl::Status joined = replica_->Join(link, hello, absl::Now());
  if (!joined.ok()) {
    link->Close(ToGrpcStatus(joined));
    return;
  }
  v1::ToRank message;
  message.mutable_welcome()->set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(config_.heartbeat_interval));
  link->Send(SerializeMessage(message));
  Tell(EventOf(ControllerEvent::Kind::kRankJoined, hello.rank()));
  SetPhase(phase_, replica_->Progress());
}

void EventLoop::Hear(const RankLink* link, const v1::FromRank& message) {
  const int rank = replica_ == nullptr ? -1 : replica_->RankOf(link);
  if (rank < 0) return;  // refused, or of a lost replica
  replica_->Saw(rank, absl::Now());
  const absl::Status handled = Handle(rank, message);
  if (!handled.ok()) LoseReplica(rank, std::string(handled.message()));
}

absl::Status EventLoop::Handle(int rank, const v1::FromRank& message) {
  switch (message.message_case()) {
    case v1::FromRank::kResult:
      RETURN_IF_ERROR(replica_->CheckMayReport(rank));
      return Commit(message.result());
    case v1::FromRank::kHeartbeat:
      return replica_->OnHeartbeat(rank, message.heartbeat(), absl::Now());
    case v1::FromRank::kLoading:
      RETURN_IF_ERROR(replica_->OnLoading(rank, message.loading()));
      Tell(EventOf(ControllerEvent::Kind::kRankLoading, rank));
      return absl::OkStatus();
    case v1::FromRank::kLoaded: {
      RETURN_IF_ERROR(replica_->OnLoaded(rank, message.loaded()));
      ControllerEvent event = EventOf(ControllerEvent::Kind::kRankLoaded, rank);
      event.message = message.loaded().backend();
      Tell(event);
      SetPhase(phase_, replica_->Progress());
      return replica_->AllLoaded() ? StartRanks() : absl::OkStatus();
    }
    case v1::FromRank::kReady:
      RETURN_IF_ERROR(replica_->OnReady(rank, message.ready()));
      if (replica_->AllReady()) StartEngine();
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

// All ranks are loaded: agree on the cache, or say what it would take.
absl::Status EventLoop::StartRanks() {
  const int64_t block_size = config_.engine.block_size;
  const int64_t fitting = replica_->SmallestKvBlocks();
  const int64_t wanted_tokens = std::max<int64_t>(config_.max_model_len, 2);
  const int64_t needed = (wanted_tokens + block_size - 1) / block_size;
  if (fitting < needed) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "max_model_len ", wanted_tokens, " needs ", needed, " KV blocks of ", block_size,
        " tokens, but only ", fitting, " fit the smallest rank: give the KV cache more memory or ",
        "lower max_model_len to ", fitting * block_size));
  }
  if (engine_ != nullptr && fitting < agreed_kv_blocks_) {
    return absl::ResourceExhaustedError(absl::StrCat("the new ranks have room for ", fitting,
                                                     " KV blocks, the lost ones had ",
                                                     agreed_kv_blocks_));
  }
  if (engine_ == nullptr) agreed_kv_blocks_ = fitting;
  replica_->StartServing(agreed_kv_blocks_);
  return absl::OkStatus();
}

// All ranks are ready. After a lost replica the engine goes on with the requests it has.
void EventLoop::StartEngine() {
  if (engine_ == nullptr) {
    engine::EngineConfig& config = config_.engine;
    config.num_blocks = agreed_kv_blocks_;
    config.max_model_len =
        config_.max_model_len > 0
            ? config_.max_model_len
            : std::min(config_.max_position_embeddings, agreed_kv_blocks_ * config.block_size);
    config_.limits.max_model_len = config.max_model_len;
    engine_ = std::make_unique<engine::Engine>(config);
  }
  recovery_deadline_ = absl::InfiniteFuture();
  ControllerEvent event = EventOf(ControllerEvent::Kind::kServing);
  event.num_kv_blocks = agreed_kv_blocks_;
  event.max_model_len = config_.limits.max_model_len;
  Tell(event);  // before WaitServing can return
  SetPhase(Phase::kServing, "");
}

// One rank is enough to lose them all: they move in lockstep.
void EventLoop::LoseReplica(int rank, const std::string& why) {
  ControllerEvent event = EventOf(ControllerEvent::Kind::kRankLost, rank);
  event.message = absl::StrCat(replica_->Describe(rank, absl::Now()), ": ", why);
  DropReplica(grpc::Status(grpc::StatusCode::ABORTED,
                           absl::StrCat("the replica is lost: ", event.message)));
  Tell(event);
  if (config_.recovery_window > absl::ZeroDuration()) {
    recovery_deadline_ = absl::Now() + config_.recovery_window;
    SetPhase(Phase::kRecovering, event.message);
  } else {
    FailNow(event.message);
  }
}

void EventLoop::DropReplica(const grpc::Status& status) {
  if (replica_ != nullptr) replica_->CloseAll(status);
  replica_.reset();
  in_flight_.clear();
  if (engine_ != nullptr) engine_->ResetReplica();
}

void EventLoop::FailNow(const std::string& reason) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, reason);
  DropReplica(status);
  recovery_deadline_ = absl::InfiniteFuture();
  ControllerEvent event = EventOf(ControllerEvent::Kind::kFailed);
  event.message = reason;
  Tell(event);
  SetPhase(Phase::kFailed, reason);
  EndRequests(v1::FINISH_REASON_ABORTED, status);
}

void EventLoop::BeginEpochNow(uint64_t epoch) {
  if (epoch <= config_.replica.epoch || ended_) return;
  DropReplica(grpc::Status(
      grpc::StatusCode::FAILED_PRECONDITION,
      absl::StrCat("epoch ", config_.replica.epoch, " ended, epoch ", epoch, " begins")));
  config_.replica.epoch = epoch;
  replica_ = std::make_unique<Replica>(config_.replica);
  recovery_deadline_ = absl::InfiniteFuture();
  SetPhase(engine_ == nullptr ? Phase::kStarting : Phase::kRecovering, replica_->Progress());
}

// --- control ---

void EventLoop::Fail(std::string reason) {
  queue_.Push([this, reason = std::move(reason)] {
    if (phase_ != Phase::kFailed) FailNow(reason);
  });
}

void EventLoop::BeginEpoch(uint64_t epoch) {
  queue_.Push([this, epoch] { BeginEpochNow(epoch); });
}

void EventLoop::BeginDrain() {
  queue_.Push([this] {
    draining_ = true;
    SetPhase(phase_, detail_);
    if (requests_.empty()) EndDrain();
  });
}

void EventLoop::EndAll(std::string reason) {
  absl::Notification done;
  queue_.Push([&, this] {
    draining_ = ended_ = true;
    SetPhase(Phase::kFailed, reason);
    EndRequests(v1::FINISH_REASON_ABORTED, grpc::Status(grpc::StatusCode::UNAVAILABLE, reason));
    if (replica_ != nullptr) replica_->ShutDownAll(reason);
    replica_.reset();
    in_flight_.clear();
    EndDrain();
    done.Notify();
  });
  done.WaitForNotification();
}

// --- what others see ---

void EventLoop::SetPhase(Phase phase, std::string detail) {
  phase_ = phase;
  detail_ = std::move(detail);
  ServingState::Snapshot snapshot;
  snapshot.phase = phase_;
  snapshot.draining = draining_;
  snapshot.detail = detail_;
  if (engine_ != nullptr) snapshot.capacity = Capacity{config_.limits, agreed_kv_blocks_};
  serving_.Publish(std::move(snapshot));
}

void EventLoop::EndDrain() {
  if (std::exchange(drained_, true)) return;
  Tell(EventOf(ControllerEvent::Kind::kDrained));
  serving_.PublishDrained();
}

v1::GetStatusResponse EventLoop::StatusNow() const {
  v1::GetStatusResponse response;
  using Proto = v1::GetStatusResponse;
  response.set_state(phase_ == Phase::kFailed    ? Proto::STATE_FAILED
                     : draining_                 ? Proto::STATE_DRAINING
                     : phase_ == Phase::kServing ? Proto::STATE_SERVING
                                                 : Proto::STATE_STARTING);
  response.set_detail(detail_);
  const absl::Time now = absl::Now();
  response.set_uptime_ms(absl::ToInt64Milliseconds(now - started_at_));
  if (engine_ != nullptr) {
    const engine::EngineStats stats = engine_->Stats();
    response.set_num_waiting(stats.num_waiting);
    response.set_num_running(stats.num_running);
    response.set_kv_blocks_total(stats.blocks_total);
    response.set_kv_blocks_in_use(stats.blocks_in_use);
    response.set_kv_blocks_cached(stats.blocks_cached);
    response.set_num_preemptions(stats.num_preemptions);
    response.set_num_steps(stats.num_steps);
    response.set_prompt_tokens_computed(stats.prompt_tokens_computed);
    response.set_prompt_tokens_cached(stats.prompt_tokens_cached);
    response.set_tokens_generated(stats.tokens_generated);
  }
  response.set_requests_accepted(counters_.accepted);
  response.set_requests_finished(counters_.finished);
  response.set_requests_rejected(num_rejected_.load(std::memory_order_relaxed));
  response.set_requests_aborted(counters_.aborted);
  if (replica_ != nullptr) replica_->FillStatus(now, &response);
  return response;
}

ControllerEvent EventLoop::EventOf(ControllerEvent::Kind kind, int rank) const {
  ControllerEvent event;
  event.kind = kind;
  event.epoch = config_.replica.epoch;
  event.rank = rank;
  if (rank < 0 || replica_ == nullptr) return event;
  const v1::RankStatus status = replica_->StatusOf(rank, absl::Now());
  event.tp_rank = status.tp_rank();
  event.pipeline_stage = status.pipeline_stage();
  event.host = status.host();
  event.pid = status.pid();
  event.bytes_done = status.loaded_bytes();
  event.bytes_total = status.shard_bytes();
  event.weight_bytes = status.weight_bytes();
  return event;
}

void EventLoop::Tell(const ControllerEvent& event) const {
  if (config_.observer) config_.observer(event);
}

}  // namespace lockstep
