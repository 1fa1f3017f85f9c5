// The simulation's ranks, what breaks them, and who starts them anew.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "runtime/controller/wire.h"
#include "runtime/worker/plan_codec.h"
#include "tests/controller/simulation.h"
#include "tests/engine/killers.h"

namespace lockstep::testing {

// A rank process and its stream. Messages of one direction arrive in order, unless a fault swaps
// them.
struct Simulation::Rank {
  int replica = 0;
  uint64_t epoch = 0;
  int rank = 0;
  bool welcomed = false;
  bool alive = true;     // the process runs
  bool stalled = false;  // it takes no plans any more
  bool silent = false;   // it sends nothing any more
  std::shared_ptr<Port> port;
  std::unique_ptr<engine::SimulatedRank> compute;  // the reporter's
  engine::Killers killers;
  absl::Time free_at;
  absl::Time last_up;  // when the newest message of each direction arrives
  absl::Time last_down;
  uint64_t last_step = 0;
  enum class Mangle { kNone, kDrop, kRepeat, kSwap } mangle = Mangle::kNone;  // its next result
};

class Simulation::Port final : public RankPort {
 public:
  Port(Simulation& simulation, std::weak_ptr<Rank> rank)
      : simulation_(simulation), rank_(std::move(rank)) {}

  void Send(const grpc::ByteBuffer& message) override {
    const std::shared_ptr<Rank> rank = rank_.lock();
    if (closed_ || rank == nullptr) return;
    v1::ToRank parsed;
    LS_CHECK(ParseMessage(message, parsed).ok());
    const absl::Time at = std::max(rank->last_down, simulation_.now_ + simulation_.RandomDelay());
    rank->last_down = at;
    simulation_.After(at - simulation_.now_,
                      [&simulation = simulation_, rank, parsed = std::move(parsed)] {
                        simulation.Arrive(rank, parsed);
                      });
  }
  void Close(grpc::Status) override { End(); }
  void CloseNow(grpc::Status) override { End(); }

 private:
  // The rank learns of it later and ends; what it sends until then still arrives.
  void End() {
    if (std::exchange(closed_, true)) return;
    const std::shared_ptr<Rank> rank = rank_.lock();
    if (rank == nullptr) return;
    simulation_.After(simulation_.RandomDelay() * 20, [rank] { rank->alive = false; });
  }
  Simulation& simulation_;
  const std::weak_ptr<Rank> rank_;
  bool closed_ = false;
};

// The supervisor, or whoever placed the ranks by hand.
void Simulation::BeginNextEpoch(int replica) {
  const uint64_t epoch = ++epochs_[replica];
  After(absl::Milliseconds(random_.Between(1, 700)), [this, replica, epoch] {
    if (epoch != epochs_[replica]) return;  // a newer one began meanwhile
    if (!adopt_epochs_) core_->BeginEpoch(replica, epoch, now_);
    StartRanks(replica, epoch);
  });
}

void Simulation::StartRanks(int replica, uint64_t epoch) {
  Trace(absl::StrCat("start ", replica, " epoch ", epoch));
  for (int index = 0; index < grid_.world_size(); ++index) {
    auto rank = std::make_shared<Rank>();
    rank->replica = replica;
    rank->epoch = epoch;
    rank->rank = index;
    rank->port = std::make_shared<Port>(*this, rank);
    rank->free_at = rank->last_up = rank->last_down = now_;
    ranks_.push_back(rank);
    SendUp(rank, HelloOf(*rank));
  }
}

v1::FromRank Simulation::HelloOf(const Rank& rank) const {
  v1::FromRank message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_epoch(rank.epoch);
  hello.set_replica(rank.replica);
  hello.set_rank(rank.rank);
  hello.set_world_size(grid_.world_size());
  hello.set_tensor_parallel(grid_.tp());
  hello.set_pipeline_parallel(grid_.pp());
  hello.set_version("1");
  hello.set_model_fingerprint("model");
  hello.mutable_numerics()->set_device("cpu");
  hello.mutable_numerics()->set_dtype("f32");
  v1::RankLimits& limits = *hello.mutable_limits();
  limits.set_block_size(random_.config().block_size);
  limits.set_max_num_seqs(random_.config().max_num_seqs);
  limits.set_max_batched_tokens(random_.config().max_batched_tokens);
  limits.set_max_model_len(random_.config().max_model_len);
  hello.set_pid(1000 + rank.rank);
  return message;
}

void Simulation::SendUp(const std::shared_ptr<Rank>& rank, v1::FromRank message) {
  if (!rank->alive || rank->silent) return;
  absl::Time at = std::max(rank->last_up, now_ + RandomDelay());
  int copies = 1;
  if (message.has_result()) {
    const Rank::Mangle mangle = std::exchange(rank->mangle, Rank::Mangle::kNone);
    if (mangle == Rank::Mangle::kDrop) return;
    if (mangle == Rank::Mangle::kRepeat) copies = 2;
    if (mangle == Rank::Mangle::kSwap) at += absl::Milliseconds(200);  // later ones overtake it
    if (mangle != Rank::Mangle::kSwap) rank->last_up = at;
  } else {
    rank->last_up = at;
  }
  for (int i = 0; i < copies; ++i) {
    After(at - now_, [this, rank, message] {
      if (!rank->alive && !random_.OneIn(2)) return;  // the wire may still hold it
      core_->RankSaid(rank->port, message, now_);
    });
  }
}

void Simulation::Arrive(const std::shared_ptr<Rank>& rank, const v1::ToRank& message) {
  if (!rank->alive) return;
  if (message.has_welcome()) {
    rank->welcomed = true;
    Beat(rank);
    v1::FromRank reply;
    v1::Loaded& loaded = *reply.mutable_loaded();
    loaded.set_kv_block_bytes(1);
    const int64_t num_blocks = random_.config().num_blocks + rank->rank;
    loaded.mutable_kv_room()->set_max_kv_blocks(num_blocks);
    loaded.mutable_kv_room()->set_most_kv_blocks(num_blocks);
    loaded.set_max_host_blocks(random_.config().num_host_blocks + rank->rank);
    loaded.set_weight_bytes(random_.Between(0, 640));
    After(absl::Milliseconds(random_.Between(0, 300)),
          [this, rank, reply] { SendUp(rank, reply); });
  } else if (message.has_start()) {
    if (rank->rank == grid_.rank_of(grid_.pp() - 1, 0)) {
      engine::SimulatedRankOptions options;
      options.num_blocks = message.start().num_kv_blocks();
      options.num_host_blocks = message.start().num_host_blocks();
      options.block_size = random_.config().block_size;
      options.max_num_seqs = random_.config().max_num_seqs;
      options.max_model_len = random_.config().max_model_len;
      options.pipeline_depth = grid_.pp();
      rank->compute = std::make_unique<engine::SimulatedRank>(options, model_);
    }
    v1::FromRank reply;
    reply.mutable_ready()->set_kv_cache_bytes(1);
    SendUp(rank, std::move(reply));
  } else if (message.has_plan() && rank->compute != nullptr) {
    Execute(rank, message.plan());
  } else if (message.has_shutdown()) {
    rank->alive = false;
  }
}

void Simulation::Execute(const std::shared_ptr<Rank>& rank, const v1::StepPlan& message) {
  if (rank->stalled) return;
  const absl::StatusOr<engine::StepPlan> plan = DecodePlan(message);
  LS_CHECK(plan.ok()) << plan.status().message();
  rank->killers.See(*plan);
  if (rank->killers.deadly_step()) return Break(rank);
  v1::FromRank reply;
  EncodeResult(rank->compute->Execute(*plan, rank->last_step), reply.mutable_result());
  rank->last_step = plan->step_id;
  const absl::Duration cost = absl::Microseconds(random_.Between(100, 5000));
  rank->free_at = std::max(now_, rank->free_at) + cost;
  After(rank->free_at - now_, [this, rank, reply] { SendUp(rank, reply); });
}

void Simulation::Beat(const std::shared_ptr<Rank>& rank) {
  if (!rank->alive) return;
  v1::FromRank message;
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_operation("idle");
  heartbeat.set_last_step(rank->last_step);
  SendUp(rank, std::move(message));
  After(absl::Milliseconds(500), [this, rank] { Beat(rank); });
}

// Who started the ranks sees one end before the core ever heard of it.
void Simulation::Break(const std::shared_ptr<Rank>& rank) {
  rank->alive = false;
  if (!rank->welcomed && rank->epoch == epochs_[rank->replica]) BeginNextEpoch(rank->replica);
  After(RandomDelay(), [this, rank] { core_->RankClosed(*rank->port, "its stream closed", now_); });
}

void Simulation::InjectFault() {
  --faults_left_;
  ++num_faults_;
  if (ranks_.empty()) return;
  // Mostly one that lives; now and then one of an epoch long gone.
  const int num_ranks = static_cast<int>(ranks_.size());
  const int num_living = num_replicas_ * grid_.world_size();
  const int first = random_.OneIn(5) ? 0 : std::max(0, num_ranks - num_living);
  const auto rank = ranks_[random_.Between(first, num_ranks - 1)];
  const int kind = random_.Between(0, 8);
  Trace(
      absl::StrCat("fault ", kind, " at ", rank->replica, ".", rank->rank, " epoch ", rank->epoch));
  switch (kind) {
    case 0:
    case 1:
      return Break(rank);
    case 2:
      rank->stalled = true;  // heartbeats go on, results do not
      return;
    case 3:
      rank->silent = true;
      return;
    case 4:
      rank->mangle = Rank::Mangle::kDrop;
      return;
    case 5:
      rank->mangle = Rank::Mangle::kRepeat;
      return;
    case 6:
      rank->mangle = Rank::Mangle::kSwap;
      return;
    case 7:  // ranks of an epoch that ended, or of this one a second time
      return StartRanks(rank->replica, rank->epoch);
    case 8: {  // an epoch begins although nobody was lost
      const uint64_t epoch = ++epochs_[rank->replica];
      if (!adopt_epochs_) core_->BeginEpoch(rank->replica, epoch, now_);
      return StartRanks(rank->replica, epoch);
    }
  }
}

}  // namespace lockstep::testing
