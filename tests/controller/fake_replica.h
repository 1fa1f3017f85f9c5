// Ranks without MPI and without a model: each dials the controller over gRPC like a real one and
// goes through a rank's life; the reporter computes what FakeLanguageModel says. Faults on demand.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "parallel/process_grid.h"
#include "runtime/engine/fake_language_model.h"
#include "runtime/engine/simulated_rank.h"

namespace lockstep::testing {

struct FakeReplicaOptions {
  ProcessGrid grid = *ProcessGrid::Create(1, 1);
  v1::Hello hello;  // rank and layout are filled in
  engine::SimulatedRankOptions rank;
  absl::Duration step_time = absl::ZeroDuration();
};

// One stream, driven by hand.
class RankStream {
 public:
  RankStream(const std::string& address, const std::string& secret);
  ~RankStream();
  bool Send(const v1::FromRank& message) { return stream_->Write(message); }
  bool SendHello(const v1::Hello& hello);
  bool SendLoaded(int64_t max_kv_blocks);
  bool SendReady();
  bool Receive(v1::ToRank* message) { return stream_->Read(message); }
  // Waits for the stream's end.
  grpc::Status Finish();
  void Cancel() { context_.TryCancel(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::FromRank, v1::ToRank>> stream_;
  bool finished_ = false;
};

class FakeReplica {
 public:
  // Connects all ranks and starts their threads. model must outlive it.
  FakeReplica(const std::string& address, const FakeReplicaOptions& options,
              const engine::FakeLanguageModel& model);
  ~FakeReplica();

  // The results of so many more steps are sent, then they wait; until Release.
  void HoldAfter(int64_t num_steps);
  void Hold() { HoldAfter(0); }
  void Release() { HoldAfter(INT64_MAX); }
  // In all results from now on, no token could be chosen.
  void FindNoTokens() { finds_tokens_ = false; }
  void Kill(int rank) { streams_[rank]->Cancel(); }
  RankStream& stream(int rank) { return *streams_[rank]; }
  uint64_t num_steps() const { return num_steps_.load(); }
  // Why each rank's stream ended; waits for it.
  grpc::Status Wait(int rank);

 private:
  void Live(int rank);
  void WaitUntilReleased();

  const FakeReplicaOptions options_;
  const engine::FakeLanguageModel& model_;
  std::vector<std::unique_ptr<RankStream>> streams_;
  std::vector<grpc::Status> ends_;
  std::vector<std::thread> threads_;
  std::atomic<uint64_t> num_steps_{0};
  std::atomic<bool> finds_tokens_{true};
  absl::Mutex mutex_;
  int64_t steps_left_ = INT64_MAX;  // until results wait
};

}  // namespace lockstep::testing
