// Ranks, as threads, and a controller played by the test that they lose and find again.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "runtime/worker/worker.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"
#include "tests/worker/plan_writer.h"
#include "tests/worker/scripted_stream.h"

namespace lockstep::testing {

namespace fs = std::filesystem;

// What the controller does with one rank's stream, after its Hello.
using Script = std::function<void(Stream&, int rank)>;

inline const grpc::Status kLost(grpc::StatusCode::ABORTED, "the replica is lost");

// Plays scripts[i] with every rank of the i-th epoch it sees, the last one for good, and then
// closes the stream.
class FakeController final : public v1::WorkerLink::Service {
 public:
  FakeController(const std::string& address, std::vector<Script> scripts)
      : scripts_(std::move(scripts)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeController() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::vector<uint64_t> epochs() {
    const std::lock_guard lock(mutex_);
    return epochs_;
  }
  void CloseWith(grpc::Status status) {
    const std::lock_guard lock(mutex_);
    closing_ = std::move(status);
  }

  grpc::Status Connect(grpc::ServerContext*, Stream* stream) override {
    v1::FromRank message;
    if (!stream->Read(&message) || !message.has_hello()) return kLost;
    const Script& script = scripts_[std::min(LifeOf(message.hello().epoch()), scripts_.size() - 1)];
    script(*stream, message.hello().rank());
    const std::lock_guard lock(mutex_);
    return closing_;
  }

 private:
  size_t LifeOf(uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    if (epochs_.empty() || epoch > epochs_.back()) epochs_.push_back(epoch);
    EXPECT_EQ(epoch, epochs_.back());
    return epochs_.size() - 1;
  }

  const std::vector<Script> scripts_;
  std::mutex mutex_;
  std::vector<uint64_t> epochs_;
  grpc::Status closing_ = kLost;
  std::unique_ptr<grpc::Server> server_;
};

inline void EndRank(Stream& stream) {
  ShutDown(stream);
  WaitForEnd(stream);
}

class RejoinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = SharedAssets() / "models" / "stories260K";
    SKIP_WITHOUT_ASSET(model);
    scratch_.emplace();
    fs::copy(model, *scratch_ / "model");
  }
  void MakeAnew() {
    SetUp();
    num_here_ = 0;
  }

  std::string address() const { return "unix:" + (*scratch_ / "socket").string(); }

  WorkerOptions Options(int rank) {
    WorkerOptions options;
    options.controller_address = address();
    options.grid = grid_;
    options.rank = rank;
    options.host = "here";
    options.version = "1";
    options.model = *scratch_ / "model";
    options.stage.limits = {
        .max_batched_tokens = 64, .max_num_seqs = 4, .max_model_len = 128, .block_size = 8};
    options.num_kv_blocks = 32;
    options.rejoin_window = rejoin_window_;
    if (rank == 0) {
      options.on_notice = [this](const std::string& notice) { notices_.push_back(notice); };
    }
    if (rank == grid_.world_size() - 1 && change_last_ != nullptr) change_last_(options);
    return options;
  }

  // Ranks of the grid, until all have ended.
  std::vector<absl::Status> RunRanks() {
    const auto ranks = MakeInProcessRendezvous(grid_);
    std::vector<absl::Status> results(ranks.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      threads.emplace_back(
          [&, rank] { results[rank] = RunWorker(Options(static_cast<int>(rank)), *ranks[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }
  void ExpectRanksEndWell() {
    for (const absl::Status& result : RunRanks()) EXPECT_TRUE(result.ok()) << result;
  }
  std::vector<absl::Status> RunAgainst(std::vector<Script> scripts) {
    FakeController controller(address(), std::move(scripts));
    std::vector<absl::Status> results = RunRanks();
    epochs_ = controller.epochs();
    return results;
  }
  void ExpectGoodEndAgainst(std::vector<Script> scripts) {
    for (const absl::Status& result : RunAgainst(std::move(scripts))) {
      EXPECT_TRUE(result.ok()) << result;
    }
  }

  // From then on, nobody can load the model.
  void RemoveWeights() {
    std::error_code ignored;  // another rank's script may have been faster
    fs::resize_file(*scratch_ / "model/model.safetensors", 8, ignored);
    fs::remove(*scratch_ / "model/model.safetensors", ignored);
  }
  // All ranks have come as far as this.
  void AwaitAll() {
    ++num_here_;
    while (num_here_ < grid_.world_size()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Serves until all are ready; then the weights are gone.
  Script PrepareThen(Script then) {
    return [this, then = std::move(then)](Stream& stream, int rank) {
      EXPECT_TRUE(Prepare(stream));
      AwaitAll();
      RemoveWeights();
      then(stream, rank);
    };
  }
  // A life in which everything is there at once and five tokens come out as they should.
  Script GenerateWithoutLoading(int64_t num_kv_blocks = 16) {
    return [this, num_kv_blocks](Stream& stream, int rank) {
      Welcome(stream);
      const v1::FromRank loaded = NextOrProgress(stream);
      ASSERT_TRUE(loaded.has_loaded());
      EXPECT_EQ(loaded.loaded().load_ms(), 0);
      EXPECT_EQ(loaded.loaded().kv_room().max_kv_blocks(), 32);
      v1::ToRank start;
      start.mutable_start()->set_num_kv_blocks(num_kv_blocks);
      stream.Write(start);
      EXPECT_TRUE(Next(stream).has_ready());
      Generate(stream, rank);
      EndRank(stream);
    };
  }
  void Generate(Stream& stream, int rank) {
    PlanWriter plan;
    Send(stream, plan.Open(0, {1}).Grant(0, {3, 4}).Decode(0).Take());
    for (int i = 0; i < 4; ++i) Send(stream, plan.Decode(0).Take());
    if (rank != grid_.rank_of(grid_.pp() - 1, 0)) return;
    std::vector<int32_t> tokens;
    for (uint64_t step = 1; step <= 5; ++step) {
      const v1::FromRank message = Next(stream);
      ASSERT_TRUE(message.has_result());
      EXPECT_EQ(message.result().step_id(), step);
      tokens.push_back(message.result().tokens(0));
    }
    EXPECT_EQ(tokens, (std::vector<int32_t>{403, 407, 261, 378, 432}));  // golden.json's first
  }

  std::optional<TempDirectory> scratch_;
  ProcessGrid grid_ = *ProcessGrid::Create(2, 2);
  absl::Duration rejoin_window_ = absl::Seconds(60);
  std::function<void(WorkerOptions&)> change_last_;  // of the ranks
  std::atomic<int> num_here_{0};
  std::vector<uint64_t> epochs_;
  std::vector<std::string> notices_;  // of rank 0, in its thread
};

}  // namespace lockstep::testing
