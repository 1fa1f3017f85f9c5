// The controller's core with simulated ranks, clients, a supervisor and a network, in virtual time:
// one seed is one run, byte for byte. (The idea is FoundationDB's: the whole cluster in one thread,
// from one seed; Zhou et al., "FoundationDB", SIGMOD 2021, section 4.)
//
// Ranks join, load, compute what FakeLanguageModel says and heartbeat; messages take random times;
// ranks die, stall, fall silent, lose, repeat and swap messages, and speak from old epochs. Checked
// all the time: every accepted request gets exactly the tokens it gets when it runs alone, ends
// once, and leaves nothing behind.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/controller/core.h"
#include "runtime/engine/fake_language_model.h"
#include "runtime/engine/simulated_rank.h"
#include "tests/engine/random_workload.h"

namespace lockstep::testing {

struct SimulationCounts {
  int accepted = 0;
  int finished = 0;
  int losses = 0;   // of replicas
  int killers = 0;  // requests ended because they killed their ranks
  int blamed = 0;   // others ended for what faults did
  int losses_while_others_served = 0;
};

class Simulation final : private CoreOutput {
 public:
  explicit Simulation(uint64_t seed);
  ~Simulation() override;
  // To the end: all requests ended, or a failure.
  void Run();

  const std::string& trace() const { return trace_; }
  const std::vector<std::string>& failures() const { return failures_; }
  const SimulationCounts& counts() const { return counts_; }

 private:
  class Port;
  struct Rank;
  struct Client;

  void After(absl::Duration delay, std::function<void()> what);
  absl::Duration RandomDelay();
  void Trace(const std::string& line);
  void Fail(const std::string& what);
  void CheckAtEnd();

  // Ranks (simulated_ranks.cc).
  void BeginNextEpoch(int replica);
  void StartRanks(int replica, uint64_t epoch);
  v1::FromRank HelloOf(const Rank& rank) const;
  void SendUp(const std::shared_ptr<Rank>& rank, v1::FromRank message);
  void Arrive(const std::shared_ptr<Rank>& rank, const v1::ToRank& message);
  void Execute(const std::shared_ptr<Rank>& rank, const v1::StepPlan& plan);
  void Beat(const std::shared_ptr<Rank>& rank);
  void Break(const std::shared_ptr<Rank>& rank);
  void InjectFault();

  void AddRequest();
  void DisturbRequest();

  void Deliver(engine::EngineEvent event) override;
  void End(uint64_t number, v1::FinishReason reason, const grpc::Status& status) override;
  void Forget(uint64_t number) override;
  void Publish(const ServingState::Snapshot& snapshot) override;
  void Drained() override;
  void Tell(const ControllerEvent& event) override;

  engine::RandomWorkload random_;
  engine::FakeLanguageModel model_;
  const ProcessGrid grid_;
  const int num_replicas_;
  const bool adopt_epochs_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  uint64_t next_event_ = 0;
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> events_;
  std::vector<uint64_t> epochs_;  // [num_replicas], the newest started
  std::vector<std::shared_ptr<Rank>> ranks_;
  std::map<uint64_t, Client> clients_;
  int requests_left_ = 0;
  int faults_left_ = 0;
  int num_faults_ = 0;  // so far
  SimulationCounts counts_;
  std::string trace_;
  std::vector<std::string> failures_;
  std::unique_ptr<ControllerCore> core_;
};

}  // namespace lockstep::testing
