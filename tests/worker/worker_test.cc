// A rank's life with its controller.
#include "runtime/worker/worker.h"

#include <atomic>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/plan_writer.h"
#include "tests/worker/worker_fixture.h"

namespace lockstep::testing {
namespace {

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
    EXPECT_TRUE(Serve(stream));
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
  options.stop_grace = absl::Seconds(1);
  options.on_stuck = [&](const absl::Status& status) {
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("forward step 1"));
    ++num_stuck;
  };
  const absl::Status status = RunAgainst(options);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(num_stuck, 1);
}

}  // namespace
}  // namespace lockstep::testing
