#include "tests/controller/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "runtime/controller/wire.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep::testing {
namespace {

constexpr absl::Duration kLongestRun = absl::Hours(1);  // of virtual time
constexpr size_t kMaxEvents = 400'000;
const absl::Time kStart = absl::FromUnixSeconds(1000);

}  // namespace

struct Simulation::Client {
  engine::EngineRequest request;
  std::vector<std::vector<int32_t>> expected;  // [num_outputs]
  std::vector<std::vector<int32_t>> got;
  std::vector<bool> finished;
  bool stopped_first = false;  // by a stop string in output 0: tokens on their way may still come
  size_t num_prompt_logprobs = 0;
  bool gone = false;  // cancelled, aborted or ended by the core
  bool forgotten = false;
};

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
  absl::Time free_at;
  absl::Time last_up;  // when the newest message of each direction arrives
  absl::Time last_down;
  uint64_t last_step = 0;
  uint64_t num_beats = 0;
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

Simulation::Simulation(uint64_t seed)
    : random_(seed),
      model_(seed, engine::kVocabSize, {0, 1}),
      grid_(*ProcessGrid::Create(random_.Between(1, 2), random_.Between(1, 2))),
      num_replicas_(random_.Between(1, 3)),
      adopt_epochs_(random_.OneIn(4)),
      epochs_(num_replicas_, adopt_epochs_ ? 0 : 1),
      requests_left_(random_.Between(3, 25)),
      faults_left_(random_.Between(0, 8)) {
  CoreConfig config{.num_replicas = num_replicas_,
                    .grid = grid_,
                    .version = "1",
                    .model_fingerprint = "model",
                    .first_epoch = adopt_epochs_ ? 0u : 1u,
                    .adopt_epochs = adopt_epochs_,
                    .engine = random_.config(),
                    .max_model_len = 0,
                    .max_position_embeddings = random_.config().max_model_len,
                    .limits = {.vocab_size = engine::kVocabSize},
                    .heartbeat_interval = absl::Milliseconds(500),
                    .lease = absl::Seconds(5),
                    .join_timeout = absl::Seconds(30),
                    .load_timeout = absl::Seconds(60),
                    .recovery_window = absl::InfiniteDuration(),
                    .step_deadline = {}};
  config.engine.pipeline_depth = grid_.pp();
  config.engine.max_steps_in_flight = grid_.pp() + 1;
  CoreOutput& output = *this;
  core_ = std::make_unique<ControllerCore>(std::move(config), output, now_);
  for (int replica = 0; replica < num_replicas_; ++replica) {
    After(RandomDelay(), [this, replica] {
      if (adopt_epochs_) epochs_[replica] = 1;
      StartRanks(replica, epochs_[replica]);
    });
  }
  for (int i = 0; i < requests_left_; ++i) {
    After(absl::Milliseconds(random_.Between(0, 4000)), [this] { AddRequest(); });
  }
  for (int i = 0; i < faults_left_; ++i) {
    After(absl::Milliseconds(random_.Between(1, 5000)), [this] { InjectFault(); });
  }
}

Simulation::~Simulation() = default;

void Simulation::After(absl::Duration delay, std::function<void()> what) {
  events_.emplace(std::pair(now_ + delay, next_event_++), std::move(what));
}

// Mostly a millisecond, now and then much more.
absl::Duration Simulation::RandomDelay() {
  if (random_.OneIn(20)) return absl::Microseconds(random_.Between(1000, 80'000));
  return absl::Microseconds(random_.Between(20, 1000));
}

void Simulation::Trace(const std::string& line) {
  absl::StrAppend(&trace_, absl::ToInt64Microseconds(now_ - kStart), " ", line, "\n");
}

void Simulation::Fail(const std::string& what) {
  Trace("FAILURE " + what);
  failures_.push_back(what);
}

void Simulation::Run() {
  size_t num_events = 0;
  while (failures_.empty()) {
    core_->Advance(now_);
    core_->CheckInvariants();
    const bool all_ended =
        requests_left_ == 0 && std::all_of(clients_.begin(), clients_.end(),
                                           [](const auto& each) { return each.second.forgotten; });
    if (all_ended) break;
    const absl::Time wakeup = std::max(now_, core_->NextWakeup());
    const bool is_wakeup = events_.empty() || wakeup < events_.begin()->first.first;
    if (++num_events > kMaxEvents || (is_wakeup && wakeup > kStart + kLongestRun)) {
      return Fail(absl::StrCat("nothing happens any more, or for ever; ",
                               core_->Status(now_).ShortDebugString()));
    }
    if (is_wakeup) {
      now_ = wakeup;
      continue;
    }
    // The loop takes what came while it was busy in one go.
    do {
      auto event = events_.extract(events_.begin());
      now_ = std::max(now_, event.key().first);
      event.mapped()();
    } while (!events_.empty() && random_.OneIn(3));
  }
  if (failures_.empty()) CheckAtEnd();
}

void Simulation::CheckAtEnd() {
  core_->Advance(now_);
  const v1::GetStatusResponse status = core_->Status(now_);
  if (status.kv_blocks_in_use() != 0 || status.num_running() != 0 || status.num_waiting() != 0) {
    Fail(absl::StrCat("something is left: ", status.ShortDebugString()));
  }
}

// --- ranks ---

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
    v1::FromRank message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_epoch(epoch);
    hello.set_replica(replica);
    hello.set_rank(index);
    hello.set_world_size(grid_.world_size());
    hello.set_tensor_parallel(grid_.tp());
    hello.set_pipeline_parallel(grid_.pp());
    hello.set_version("1");
    hello.set_model_fingerprint("model");
    v1::RankLimits& limits = *hello.mutable_limits();
    limits.set_block_size(random_.config().block_size);
    limits.set_max_num_seqs(random_.config().max_num_seqs);
    limits.set_max_batched_tokens(random_.config().max_batched_tokens);
    limits.set_max_model_len(random_.config().max_model_len);
    hello.set_pid(1000 + index);
    SendUp(rank, std::move(message));
  }
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
    After(absl::Milliseconds(random_.Between(0, 300)),
          [this, rank, reply] { SendUp(rank, reply); });
  } else if (message.has_start()) {
    if (rank->rank == grid_.rank_of(grid_.pp() - 1, 0)) {
      engine::SimulatedRankOptions options;
      options.num_blocks = message.start().num_kv_blocks();
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

// --- clients ---

void Simulation::AddRequest() {
  if (faults_left_ > 0 && random_.OneIn(5)) DisturbRequest();
  engine::EngineRequest request = random_.NextRequest(now_);
  const uint64_t number = request.request_id;
  const std::string name = absl::StrCat("r", random_.OneIn(10) ? number - 1 : number);
  const absl::Status status = core_->Add(request, name, now_);
  Trace(absl::StrCat("add ", number, " ", status.ToString()));
  if (absl::IsUnavailable(status) || absl::IsResourceExhausted(status)) {
    After(absl::Milliseconds(random_.Between(10, 1000)), [this] { AddRequest(); });
    return;
  }
  --requests_left_;
  if (!status.ok()) return;  // it cannot run, or its name is taken
  ++counts_.accepted;
  Client& client = clients_[number];
  const engine::EngineConfig& config = random_.config();
  const int64_t max_model_len =
      std::min(config.max_model_len, config.num_blocks * config.block_size);
  for (int i = 0; i < request.num_outputs; ++i) {
    client.expected.push_back(model_.Generate(request.prompt, request.sampling, i, max_model_len));
  }
  client.got.resize(request.num_outputs);
  client.finished.resize(request.num_outputs);
  client.request = std::move(request);
}

void Simulation::DisturbRequest() {
  if (clients_.empty()) return;
  auto it = clients_.begin();
  std::advance(it, random_.Between(0, static_cast<int>(clients_.size()) - 1));
  auto& [number, client] = *it;
  Trace(absl::StrCat("disturb ", number));
  switch (random_.Between(0, 2)) {
    case 0:
      client.gone = true;
      return core_->Cancel(number);
    case 1:
      core_->Abort(absl::StrCat("r", number));
      return;
    case 2:
      client.finished[0] = client.stopped_first = true;
      return core_->FinishOutput(number, 0);
  }
}

void Simulation::Deliver(engine::EngineEvent event) {
  const auto found = clients_.find(event.request_id);
  if (found == clients_.end()) return Fail(absl::StrCat("event of unknown ", event.request_id));
  Client& client = found->second;
  const uint32_t index = event.sequence_index;
  Trace(absl::StrCat("event ", event.request_id, ".", index, " token ",
                     event.token ? event.token->token : -1, " finish ",
                     event.finish ? static_cast<int>(*event.finish) : -1));
  if (index == 0 && client.stopped_first && !client.forgotten) return;
  if (client.gone || client.forgotten || client.finished[index]) {
    return Fail(absl::StrCat("an event after the end of ", event.request_id, ".", index));
  }
  client.num_prompt_logprobs += event.prompt_logprobs.size();
  std::vector<int32_t>& got = client.got[index];
  if (event.token) {
    const auto& expected = client.expected[index];
    if (got.size() >= expected.size() || expected[got.size()] != event.token->token) {
      return Fail(absl::StrCat("token ", got.size(), " of ", event.request_id, ".", index, " is ",
                               event.token->token));
    }
    got.push_back(event.token->token);
  }
  if (!event.finish) return;
  client.finished[index] = true;
  if (*event.finish == engine::FinishReason::kDeadline) return;
  if (got != client.expected[index]) {
    Fail(absl::StrCat(event.request_id, ".", index, " ended after ", got.size(), " of ",
                      client.expected[index].size(), " tokens"));
  }
  const bool wants = client.request.sampling.num_prompt_logprobs >= 0 && index == 0;
  if (wants && client.num_prompt_logprobs + 1 != client.request.prompt.size()) {
    Fail(absl::StrCat(event.request_id, " got ", client.num_prompt_logprobs, " prompt logprobs"));
  }
}

void Simulation::End(uint64_t number, v1::FinishReason reason, const grpc::Status& status) {
  Trace(absl::StrCat("end ", number, " ", reason, " ", status.error_message()));
  if (!status.ok()) Fail(absl::StrCat("request ", number, " failed: ", status.error_message()));
  clients_.at(number).gone = true;
}

void Simulation::Forget(uint64_t number) {
  Trace(absl::StrCat("forget ", number));
  Client& client = clients_.at(number);
  if (std::exchange(client.forgotten, true)) Fail(absl::StrCat(number, " is forgotten twice"));
  const bool all_finished = std::all_of(client.finished.begin(), client.finished.end(),
                                        [](bool finished) { return finished; });
  if (!client.gone && !all_finished) Fail(absl::StrCat(number, " is forgotten unfinished"));
  ++counts_.finished;
  After(absl::ZeroDuration(), [this, number] { core_->CallEnded(number); });
}

void Simulation::Publish(const ServingState::Snapshot& snapshot) {
  Trace(absl::StrCat("phase ", static_cast<int>(snapshot.phase), " ", snapshot.detail));
}

void Simulation::Drained() {}

void Simulation::Tell(const ControllerEvent& event) {
  Trace(absl::StrCat("tell ", static_cast<int>(event.kind), " replica ", event.replica, " epoch ",
                     event.epoch, " rank ", event.rank, " ", event.message));
  if (event.kind != ControllerEvent::Kind::kRankLost) return;
  ++counts_.losses;
  const v1::GetStatusResponse status = core_->Status(now_);
  for (const v1::ReplicaStatus& replica : status.replicas()) {
    if (replica.state() != v1::ReplicaStatus::STATE_SERVING) continue;
    ++counts_.losses_while_others_served;
    break;
  }
  BeginNextEpoch(event.replica);
}

// The supervisor, or whoever placed the ranks by hand.
void Simulation::BeginNextEpoch(int replica) {
  const uint64_t epoch = ++epochs_[replica];
  After(absl::Milliseconds(random_.Between(1, 700)), [this, replica, epoch] {
    if (epoch != epochs_[replica]) return;  // a newer one began meanwhile
    if (!adopt_epochs_) core_->BeginEpoch(replica, epoch, now_);
    StartRanks(replica, epoch);
  });
}

}  // namespace lockstep::testing
