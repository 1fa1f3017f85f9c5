// RunWorker against a controller played by the test.
#include "runtime/worker/worker.h"

#include <chrono>
#include <deque>
#include <filesystem>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "parallel/rendezvous.h"
#include "runtime/worker/plan_codec.h"
#include "runtime/worker/preflight.h"
#include "runtime/worker/rank_identity.h"
#include "runtime/worker/rank_model.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"
#include "tests/worker/plan_writer.h"

namespace lockstep {
namespace {

using testing::PlanWriter;
using Stream = grpc::ServerReaderWriter<v1::ToRank, v1::FromRank>;

// One rank at a time: a script plays the controller's side of its stream.
class ScriptedController final : public v1::WorkerLink::Service {
 public:
  using Script = std::function<grpc::Status(Stream&)>;
  explicit ScriptedController(Script script) : script_(std::move(script)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address(), grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~ScriptedController() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "unix:" + (directory_ / "socket").string(); }

  grpc::Status Connect(grpc::ServerContext*, Stream* stream) override { return script_(*stream); }

 private:
  Script script_;
  const testing::TempDirectory directory_;
  std::unique_ptr<grpc::Server> server_;
};

// The next message that is no heartbeat and no progress; empty at the stream's end.
v1::FromRank Next(Stream& stream) {
  v1::FromRank message;
  while (stream.Read(&message)) {
    if (!message.has_heartbeat() && !message.has_loading()) return message;
  }
  return {};
}

void Welcome(Stream& stream, int64_t heartbeat_interval_ms = 1000) {
  v1::ToRank message;
  message.mutable_welcome()->set_heartbeat_interval_ms(heartbeat_interval_ms);
  stream.Write(message);
}

// From Hello to Ready; false when the rank does not come that far.
bool Serve(Stream& stream, int64_t num_kv_blocks = 16, int64_t heartbeat_interval_ms = 1000) {
  if (!Next(stream).has_hello()) return false;
  Welcome(stream, heartbeat_interval_ms);
  if (!Next(stream).has_loaded()) return false;
  v1::ToRank start;
  start.mutable_start()->set_num_kv_blocks(num_kv_blocks);
  stream.Write(start);
  return Next(stream).has_ready();
}

void Send(Stream& stream, const engine::StepPlan& plan) {
  v1::ToRank message;
  EncodePlan(plan, message.mutable_plan());
  stream.Write(message);
}

void ShutDown(Stream& stream) {
  v1::ToRank message;
  message.mutable_shutdown()->set_reason("done");
  stream.Write(message);
}

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = testing::SharedAssets() / "models" / "stories260K";
    SKIP_WITHOUT_ASSET(model_);
  }

  WorkerOptions Options(const std::string& address) const {
    WorkerOptions options;
    options.controller_address = address;
    options.secret = "sesame";
    options.epoch = 3;
    options.host = "here";
    options.version = "1.2.3";
    options.model = model_;
    options.stage.limits = {
        .max_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 128, .block_size = 8};
    options.num_kv_blocks = 16;
    return options;
  }

  absl::Status Run(ScriptedController::Script script) {
    ScriptedController controller(std::move(script));
    return RunAgainst(Options(controller.address()));
  }
  static RankIdentity IdentityOf(const WorkerOptions& options) {
    RankProgress progress;
    const auto model = RankModel::Open(options, progress);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->Identity();
  }
  // The job's other ranks come once, alike, and then do nothing.
  static absl::Status RunAgainst(const WorkerOptions& options) {
    std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
    std::vector<absl::StatusOr<Rendezvous::Round>> rounds;
    std::vector<IdentityExchange> exchanges(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) rounds.emplace_back(absl::UnknownError("none"));
    std::vector<std::thread> others;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      if (static_cast<int>(rank) == options.rank) continue;
      others.emplace_back([&, rank] {
        rounds[rank] = ranks[rank]->Next(0, absl::Minutes(10));
        if (!rounds[rank].ok()) return;
        EXPECT_TRUE(
            exchanges[rank].Run(options.grid, rounds[rank]->groups, IdentityOf(options)).ok());
      });
    }
    const absl::Status status = RunWorker(options, *ranks[options.rank]);
    for (std::thread& other : others) other.join();
    return status;
  }

  std::filesystem::path model_;
};

TEST_F(WorkerTest, LivesThroughTheProtocol) {
  v1::Hello hello;
  v1::Loaded loaded;
  v1::Ready ready;
  std::vector<int32_t> tokens;
  const absl::Status status = Run([&](Stream& stream) {
    hello = Next(stream).hello();
    Welcome(stream);
    loaded = Next(stream).loaded();
    v1::ToRank start;
    start.mutable_start()->set_num_kv_blocks(16);
    stream.Write(start);
    ready = Next(stream).ready();
    PlanWriter plan;
    Send(stream, plan.Open(0, {1}).Grant(0, {3, 4}).Decode(0).Take());
    for (int i = 0; i < 4; ++i) Send(stream, plan.Decode(0).Take());
    ShutDown(stream);
    for (v1::FromRank message = Next(stream); message.has_result(); message = Next(stream)) {
      EXPECT_EQ(message.result().step_id(), tokens.size() + 1);
      tokens.push_back(message.result().tokens(0));
    }
    return grpc::Status::OK;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(hello.secret(), "sesame");
  EXPECT_EQ(hello.epoch(), 3u);
  EXPECT_EQ(hello.world_size(), 1);
  EXPECT_EQ(hello.host(), "here");
  EXPECT_EQ(hello.version(), "1.2.3");
  EXPECT_GT(hello.pid(), 0);
  EXPECT_FALSE(hello.model_fingerprint().empty());
  EXPECT_EQ(hello.limits().block_size(), 8);
  EXPECT_EQ(hello.limits().max_num_seqs(), 4);
  EXPECT_EQ(hello.limits().max_batched_tokens(), 64);
  EXPECT_EQ(hello.limits().max_model_len(), 128);
  EXPECT_EQ(hello.numerics().device(), "cpu");
  EXPECT_EQ(hello.numerics().dtype(), "f32");
  EXPECT_TRUE(hello.numerics().deterministic());
  EXPECT_TRUE(hello.numerics().gpu().empty());
  EXPECT_EQ(loaded.kv_room().max_kv_blocks(), 16);
  EXPECT_GT(loaded.kv_block_bytes(), 0);
  EXPECT_GT(loaded.shard_bytes(), 0);
  EXPECT_LE(loaded.loaded_bytes(), loaded.shard_bytes() * 105 / 100);
  EXPECT_EQ(ready.kv_cache_bytes(), 16 * loaded.kv_block_bytes());
  // golden.json's first tokens after BOS.
  EXPECT_EQ(tokens, (std::vector<int32_t>{403, 407, 261, 378, 432}));
}

// Beside ranks that must; once.
TEST_F(WorkerTest, OnCpusARehearsalChangesNothing) {
  v1::FromRank rehearsed;
  bool was_ready = false;
  std::string last_words;
  const absl::Status status = Run([&](Stream& stream) {
    Next(stream);
    Welcome(stream);
    Next(stream);
    v1::ToRank rehearse;
    rehearse.mutable_rehearse();
    stream.Write(rehearse);
    rehearsed = Next(stream);
    v1::ToRank start;
    start.mutable_start()->set_num_kv_blocks(16);
    stream.Write(start);
    was_ready = Next(stream).has_ready();
    stream.Write(rehearse);
    last_words = Next(stream).failure().message();
    return grpc::Status::OK;
  });
  const v1::KvRoom& room = rehearsed.rehearsed().kv_room();
  EXPECT_EQ(room.max_kv_blocks(), 16);
  EXPECT_EQ(room.most_kv_blocks(), 16);
  EXPECT_TRUE(room.is_asked_for());
  EXPECT_FALSE(room.has_memory());
  EXPECT_TRUE(was_ready);
  EXPECT_THAT(last_words, ::testing::HasSubstr("unknown or repeated"));
  EXPECT_FALSE(status.ok());
}

TEST_F(WorkerTest, HeartbeatsTellWhatItDoes) {
  std::string operation;
  uint64_t last_step = 0;
  const absl::Status status = Run([&](Stream& stream) {
    Next(stream);
    Welcome(stream, 10);
    Next(stream);
    v1::ToRank start;
    start.mutable_start()->set_num_kv_blocks(16);
    stream.Write(start);
    PlanWriter plan;
    Send(stream, plan.Open(0, {1}).Grant(0, {3, 4}).Decode(0).Take());
    v1::FromRank message;
    while (stream.Read(&message) && !(operation == "idle" && last_step == 1)) {
      if (!message.has_heartbeat()) continue;
      operation = message.heartbeat().operation();
      last_step = message.heartbeat().last_step();
    }
    ShutDown(stream);
    return grpc::Status::OK;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(operation, "idle");
  EXPECT_EQ(last_step, 1u);
}

// The step loop is dead-locked: its peer never comes. Heartbeats go on and tell since when.
TEST_F(WorkerTest, AStuckCollectiveShowsInHeartbeats) {
  std::vector<v1::Heartbeat> stuck;
  ScriptedController controller([&](Stream& stream) {
    EXPECT_TRUE(Serve(stream, 16, /*heartbeat_interval_ms=*/50));
    PlanWriter plan;
    Send(stream, plan.Open(0, {1}).Grant(0, {3}).Decode(0).Take());
    v1::FromRank message;
    while (stuck.size() < 3 && stream.Read(&message)) {
      if (message.heartbeat().operation() == "forward step 1") stuck.push_back(message.heartbeat());
    }
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(2, 1);
  RunAgainst(options).IgnoreError();
  ASSERT_EQ(stuck.size(), 3u);
  EXPECT_GT(stuck[0].operation_sequence(), 0u);
  for (size_t i = 1; i < stuck.size(); ++i) {
    EXPECT_EQ(stuck[i].operation_sequence(), stuck[0].operation_sequence());
    EXPECT_GT(stuck[i].operation_age_ms(), stuck[i - 1].operation_age_ms());
    EXPECT_EQ(stuck[i].last_step(), 0u);
  }
}

TEST_F(WorkerTest, LosingTheStreamIsUnavailable) {
  const absl::Status status = Run([](Stream& stream) {
    EXPECT_TRUE(Serve(stream));
    return grpc::Status::OK;  // closes without Shutdown
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(WorkerTest, RefusalIsFailedPrecondition) {
  const absl::Status status = Run([](Stream& stream) {
    Next(stream);
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "wrong secret");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("wrong secret"));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(::testing::HasSubstr("sesame")));
}

TEST_F(WorkerTest, AMalformedPlanEndsTheRankWithLastWords) {
  std::string last_words;
  const absl::Status status = Run([&](Stream& stream) {
    EXPECT_TRUE(Serve(stream));
    PlanWriter plan;
    Send(stream, plan.Decode(2).Take());
    last_words = Next(stream).failure().message();
    return grpc::Status::OK;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(last_words, ::testing::HasSubstr("slot 2"));
}

TEST_F(WorkerTest, ShutdownBeforeServingIsClean) {
  EXPECT_TRUE(Run([](Stream& stream) {
                Next(stream);
                ShutDown(stream);
                return grpc::Status::OK;
              }).ok());
}

TEST_F(WorkerTest, ShortMemoryIsAPlainError) {
  std::string last_words;
  ScriptedController controller([&](Stream& stream) {
    Next(stream);
    Welcome(stream);
    last_words = Next(stream).failure().message();
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.num_kv_blocks.reset();
  options.kv_cache_bytes = 100;
  const absl::Status status = RunAgainst(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(last_words, ::testing::HasSubstr("100 bytes holds no block"));
}

TEST_F(WorkerTest, NobodyListeningIsUnavailable) {
  WorkerOptions options = Options("unix:/tmp/lockstep_worker_test_nobody");
  options.dial_timeout = absl::Milliseconds(200);
  const absl::Status status = RunAgainst(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

// Ranks that take their time to come together.
class SlowRendezvous final : public Rendezvous {
 public:
  SlowRendezvous(Rendezvous& ranks, absl::Duration takes) : ranks_(ranks), takes_(takes) {}
  absl::StatusOr<Round> Next(uint64_t epoch, absl::Duration timeout) override {
    if (timeout < takes_) return absl::DeadlineExceededError("rank 1 did not come");
    absl::SleepFor(takes_);
    return ranks_.Next(epoch, timeout);
  }
  bool Over() override { return ranks_.Over(); }
  void Leave() override { ranks_.Leave(); }

 private:
  Rendezvous& ranks_;
  const absl::Duration takes_;
};

TEST_F(WorkerTest, WhatRanksTakeToComeTogetherIsNotTheControllersAbsence) {
  ScriptedController controller([](Stream& stream) {
    EXPECT_EQ(Next(stream).hello().secret(), "sesame");
    ShutDown(stream);
    Next(stream);
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.dial_timeout = absl::Seconds(1);
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  SlowRendezvous slow(*ranks.front(), absl::Milliseconds(1100));
  const absl::Status status = RunWorker(options, slow);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(WorkerTest, ARankThatLeavesTheRoundWhileOthersCompareIsMetAgain) {
  ScriptedController controller([&](Stream& stream) {
    Next(stream);
    ShutDown(stream);
    Next(stream);
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(1, 2);
  options.rejoin_window = absl::Minutes(1);
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  IdentityExchange exchange;
  absl::Status compared;
  std::thread other([&] {
    auto first = ranks[1]->Next(0, absl::Minutes(10));
    ASSERT_TRUE(first.ok()) << first.status();
    first->groups.pp->Abort();
    auto second = ranks[1]->Next(0, absl::Minutes(10));
    ASSERT_TRUE(second.ok()) << second.status();
    compared = exchange.Run(options.grid, second->groups, IdentityOf(options)).status();
  });
  const absl::Status status = RunWorker(options, *ranks[0]);
  EXPECT_TRUE(status.ok()) << status;
  ranks[0]->Leave();
  other.join();
  EXPECT_TRUE(compared.ok()) << compared;
}

// Rank 1 lost touch before it loaded, rank 0, which is faster, after.
TEST_F(WorkerTest, ALoadedRankTakesPartInThePreflightOfTheOthers) {
  int num_lives = 0;
  std::vector<v1::FromRank> second_life;
  ScriptedController controller([&](Stream& stream) {
    Next(stream);
    Welcome(stream);
    EXPECT_TRUE(++num_lives > 1 || Next(stream).has_preflight());
    if (num_lives > 1) second_life.push_back(Next(stream));
    if (!second_life.empty()) ShutDown(stream);
    EXPECT_TRUE(Next(stream).has_loaded());
    return grpc::Status(grpc::StatusCode::ABORTED, "the replica is lost");
  });
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(1, 2);
  options.preflight = true;
  options.rejoin_window = absl::Minutes(1);
  std::vector<std::unique_ptr<Rendezvous>> ranks = MakeInProcessRendezvous(options.grid);
  std::vector<RankFacts> facts;
  std::deque<IdentityExchange> exchanges;
  std::deque<Rendezvous::Round> rounds;
  std::thread other([&] {
    for (int life = 1; life <= 2; ++life) {
      auto round = ranks[1]->Next(0, absl::Minutes(10));
      ASSERT_TRUE(round.ok()) << round.status();
      RankGroups& groups = rounds.emplace_back(*std::move(round)).groups;
      ASSERT_TRUE(exchanges.emplace_back().Run(options.grid, groups, IdentityOf(options)).ok());
      const auto gathered = GatherFacts(options.grid, groups, {.host = "there", .node = 1});
      ASSERT_TRUE(gathered.ok()) << "life " << life << ": " << gathered.status();
      facts.push_back(gathered->front());
      const auto backend = MakeReferenceBackend();
      ASSERT_TRUE(MeasureLinks(groups, *backend).ok());
    }
  });
  const absl::Status status = RunWorker(options, *ranks[0]);
  other.join();
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_EQ(second_life.size(), 1u);
  EXPECT_TRUE(second_life[0].has_preflight());
  ASSERT_EQ(facts.size(), 2u);
  EXPECT_GT(facts[0].needed_bytes, facts[1].needed_bytes);
  EXPECT_GT(facts[1].needed_bytes, 0) << "there is no cache yet";
}

TEST_F(WorkerTest, AStuckRankIsReportedAfterItsGrace) {
  std::atomic<int> num_stuck = 0;
  ScriptedController controller([&](Stream& stream) {
    EXPECT_TRUE(Serve(stream));
    PlanWriter plan;
    Send(stream, plan.Open(0, {1}).Grant(0, {3}).Decode(0).Take());
    ShutDown(stream);
    Next(stream);
    return grpc::Status::OK;
  });
  WorkerOptions options = Options(controller.address());
  options.grid = *ProcessGrid::Create(1, 2);
  options.rank = 1;  // stage 0 never comes
  options.stop_grace = absl::Milliseconds(50);
  options.on_stuck = [&](const absl::Status& status) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("forward step 1"));
    ++num_stuck;
  };
  const absl::Status status = RunAgainst(options);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(num_stuck, 1);
}

}  // namespace
}  // namespace lockstep
