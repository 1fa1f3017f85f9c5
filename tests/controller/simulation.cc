#include "tests/controller/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/engine/killers.h"

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

// --- clients ---

void Simulation::AddRequest() {
  if (faults_left_ > 0 && random_.OneIn(5)) DisturbRequest();
  engine::EngineRequest request = random_.NextRequest(model_, now_);
  if (random_.OneIn(40)) engine::MakeKiller(request, random_.Between(0, 20));
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
  if (event.num_emitted > 0) {
    const std::vector<int32_t>& whole = client.request.emitted.at(index);
    got.assign(whole.begin(), whole.begin() + event.num_emitted);
  }
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
  const auto& emitted = client.request.emitted;
  const bool wants = client.request.sampling.num_prompt_logprobs >= 0 && index == 0 &&
                     (emitted.empty() || emitted[0].empty());
  if (wants && client.num_prompt_logprobs + 1 != client.request.prompt.size()) {
    Fail(absl::StrCat(event.request_id, " got ", client.num_prompt_logprobs, " prompt logprobs"));
  }
}

void Simulation::End(uint64_t number, v1::FinishReason reason, const grpc::Status& status) {
  Trace(absl::StrCat("end ", number, " ", reason, " ", status.error_message()));
  Client& client = clients_.at(number);
  client.gone = true;
  if (status.ok()) return;
  const bool is_killer = engine::IsKiller(client.request);
  (is_killer ? counts_.killers : counts_.blamed) += 1;
  // What else kills ranks while a suspect is alone looks like its doing.
  if (status.error_code() != grpc::StatusCode::INTERNAL || (!is_killer && num_faults_ == 0)) {
    Fail(absl::StrCat("request ", number, " failed: ", status.error_message()));
  }
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

}  // namespace lockstep::testing
