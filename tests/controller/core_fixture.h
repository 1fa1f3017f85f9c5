// The controller's core alone, with ranks that answer every step at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "runtime/controller/core.h"
#include "runtime/controller/wire.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep::testing {

constexpr int kBlockSize = 4;
constexpr int32_t kVocabSize = 50;

class FakePort final : public RankPort {
 public:
  void Send(const grpc::ByteBuffer& bytes) override {
    v1::ToRank message;
    LS_CHECK(ParseMessage(bytes, message).ok());
    received.push_back(std::move(message));
  }
  void Close(grpc::Status status) override { closed = status; }
  void CloseNow(grpc::Status status) override { closed = status; }
  std::vector<v1::StepPlan> TakePlans() {
    std::vector<v1::StepPlan> plans;
    for (const v1::ToRank& message : received) {
      if (message.has_plan()) plans.push_back(message.plan());
    }
    received.clear();
    return plans;
  }

  std::vector<v1::ToRank> received;
  std::optional<grpc::Status> closed;
};

inline v1::RankLimits Limits() {
  const engine::EngineConfig defaults;
  v1::RankLimits limits;
  limits.set_block_size(kBlockSize);
  limits.set_max_num_seqs(defaults.max_num_seqs);
  limits.set_max_batched_tokens(defaults.max_batched_tokens);
  limits.set_max_model_len(100);
  return limits;
}

inline v1::KvRoom Room(int64_t max_kv_blocks, int64_t most_kv_blocks) {
  v1::KvRoom room;
  room.set_max_kv_blocks(max_kv_blocks);
  room.set_most_kv_blocks(most_kv_blocks);
  return room;
}

inline v1::Numerics OnCpus() {
  v1::Numerics numerics;
  numerics.set_device("cpu");
  numerics.set_dtype("f32");
  numerics.set_deterministic(true);
  return numerics;
}

// Replicas of one rank, which answer every step at once with token 7.
class CoreTest : public ::testing::Test, private CoreOutput {
 protected:
  void Start(int num_replicas, bool adopt_epochs = false, int tp = 1) {
    CoreConfig config{.num_replicas = num_replicas,
                      .grid = *ProcessGrid::Create(tp, 1),
                      .version = "",
                      .model_fingerprint = "model",
                      .first_epoch = adopt_epochs ? 0u : 1u,
                      .adopt_epochs = adopt_epochs,
                      .engine = {},
                      .max_position_embeddings = 100,
                      .limits = {.vocab_size = kVocabSize},
                      .heartbeat_interval = absl::Seconds(1),
                      .lease = absl::Seconds(5),
                      .join_timeout = absl::Seconds(30),
                      .load_timeout = absl::Seconds(40),
                      .recovery_window = absl::Seconds(60),
                      .step_deadline = {}};
    config.engine.block_size = kBlockSize;
    config.engine.vocab_size = kVocabSize;
    config.engine.max_steps_in_flight = 1;
    config.engine.max_num_seqs = max_num_seqs_;
    CoreOutput& output = *this;
    core_ = std::make_unique<ControllerCore>(std::move(config), output, now_);
  }
  std::shared_ptr<FakePort> Hello(int replica, uint64_t epoch, int rank = 0, int tp = 1) {
    auto port = std::make_shared<FakePort>();
    v1::FromRank message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_replica(replica);
    hello.set_epoch(epoch);
    hello.set_rank(rank);
    hello.set_world_size(tp);
    hello.set_tensor_parallel(tp);
    hello.set_pipeline_parallel(1);
    hello.set_model_fingerprint("model");
    *hello.mutable_limits() = Limits();
    *hello.mutable_numerics() = numerics_;
    Say(port, message);
    return port;
  }
  void Say(const std::shared_ptr<FakePort>& port, const v1::FromRank& message) {
    core_->RankSaid(port, message, now_);
    core_->Advance(now_);
  }
  // A rank from Hello to Ready.
  std::shared_ptr<FakePort> Serve(int replica, uint64_t epoch = 1) {
    auto port = Load(replica, epoch, 30);
    port->received.clear();
    v1::FromRank message;
    message.mutable_ready();
    Say(port, message);
    return port;
  }
  // To Loaded, offering so many blocks; 0: it must rehearse.
  std::shared_ptr<FakePort> Load(int replica, uint64_t epoch, int64_t max_kv_blocks) {
    auto port = Hello(replica, epoch);
    SayLoaded(port, max_kv_blocks);
    return port;
  }
  void SayLoaded(const std::shared_ptr<FakePort>& port, int64_t max_kv_blocks,
                 int64_t max_host_blocks = 0) {
    v1::FromRank message;
    message.mutable_loaded()->set_kv_block_bytes(1);
    message.mutable_loaded()->set_max_host_blocks(max_host_blocks);
    if (max_kv_blocks > 0) {
      *message.mutable_loaded()->mutable_kv_room() = Room(max_kv_blocks, max_kv_blocks);
    }
    Say(port, message);
  }
  void SayRehearsed(const std::shared_ptr<FakePort>& port, int64_t max_kv_blocks,
                    int64_t most_kv_blocks) {
    v1::FromRank message;
    *message.mutable_rehearsed()->mutable_kv_room() = Room(max_kv_blocks, most_kv_blocks);
    Say(port, message);
  }
  void Lose(const std::shared_ptr<FakePort>& port) {
    core_->RankClosed(*port, "its stream closed", now_);
    core_->Advance(now_);
  }
  absl::Status Add(uint64_t number, std::vector<int32_t> prompt, int max_tokens = 20) {
    engine::EngineRequest request;
    request.request_id = number;
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    const absl::Status status = core_->Add(std::move(request), absl::StrCat("r", number), now_);
    core_->Advance(now_);
    return status;
  }
  // Executes the plans that are there; returns how many.
  int RunSteps(const std::shared_ptr<FakePort>& port) {
    int num_steps = 0;
    for (const v1::StepPlan& plan : port->TakePlans()) {
      v1::FromRank message;
      v1::StepResult& result = *message.mutable_result();
      result.set_step_id(plan.step_id());
      for (size_t i = 0; i < SamplingSlots(*DecodePlan(plan)).size(); ++i) result.add_tokens(7);
      Say(port, message);
      ++num_steps;
    }
    return num_steps;
  }

  void Deliver(engine::EngineEvent event) override {
    if (event.token) ++num_tokens_[event.request_id];
  }
  void End(uint64_t number, v1::FinishReason, const grpc::Status& status) override {
    ended_[number] = status;
  }
  void Forget(uint64_t number) override { forgotten_.push_back(number); }
  void Publish(const ServingState::Snapshot& snapshot) override { snapshot_ = snapshot; }
  void Drained() override { drained_ = true; }
  void Tell(const ControllerEvent& event) override { told_.push_back(event); }

  int max_num_seqs_ = engine::EngineConfig().max_num_seqs;
  v1::Numerics numerics_ = OnCpus();  // of ranks that say Hello
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<ControllerCore> core_;
  std::map<uint64_t, int> num_tokens_;
  std::map<uint64_t, grpc::Status> ended_;
  std::vector<uint64_t> forgotten_;
  std::vector<ControllerEvent> told_;
  ServingState::Snapshot snapshot_;
  bool drained_ = false;
};

}  // namespace lockstep::testing
