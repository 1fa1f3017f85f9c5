// RunWorker against a controller played by the test.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "parallel/rendezvous.h"
#include "runtime/worker/rank_identity.h"
#include "runtime/worker/rank_model.h"
#include "runtime/worker/worker.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"
#include "tests/worker/scripted_stream.h"

namespace lockstep::testing {

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
  const TempDirectory directory_;
  std::unique_ptr<grpc::Server> server_;
};

// From Hello to Ready; false when the rank does not come that far.
inline bool Serve(Stream& stream) { return Next(stream).has_hello() && Prepare(stream); }

class WorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = SharedAssets() / "models" / "stories260K";
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

}  // namespace lockstep::testing
