// One replica: the ranks of its present epoch, the engine whose plans they carry out, and the steps
// in flight. The core's thread only.
//
// The engine outlives epochs: after a loss it keeps its unfinished requests, which continue on the
// next epoch's ranks or are moved to another replica.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "lockstep/v1/generation.pb.h"
#include "lockstep/v1/worker.pb.h"
#include "runtime/controller/rank_roster.h"
#include "runtime/controller/step_deadline.h"
#include "runtime/engine/engine.h"

namespace lockstep {

struct ReplicaOptions {
  RosterIdentity identity;  // with its first epoch
  int64_t vocab_size = 0;
  absl::Duration lease;         // a joined rank that says nothing for so long is lost
  absl::Duration join_timeout;  // from the first rank's Hello to the last one's
  absl::Duration load_timeout;  // without any rank's progress, before it serves
  StepDeadlineOptions step_deadline;
};

class Replica {
 public:
  enum class State { kJoining, kServing, kLost };

  Replica(const ReplicaOptions& options, absl::Time now);

  int index() const { return identity_.replica; }
  uint64_t epoch() const { return identity_.epoch; }
  State state() const { return state_; }
  bool serving() const { return state_ == State::kServing; }
  RankRoster& ranks() { return *ranks_; }  // unless kLost
  const RankRoster& ranks() const { return *ranks_; }
  engine::Engine* engine() { return engine_.get(); }  // null before its first ranks were ready
  const engine::Engine* engine() const { return engine_.get(); }
  // The rank of this stream; -1 when it is not of the present epoch.
  int RankOf(const RankPort* port) const;
  // What it waits for, or why it was lost.
  std::string Detail() const;

  // Ranks of this epoch may join; those of the last one are gone (Lose).
  void BeginEpoch(uint64_t epoch, absl::Time now);
  // All ranks are ready: an engine of this configuration, or the one there is, goes on, with the
  // host blocks that they have.
  void StartServing(engine::EngineConfig config);
  // The streams are closed, steps in flight forgotten; unfinished requests wait in the engine.
  // Returns the one that killed the ranks, if one must have.
  std::optional<uint64_t> Lose(const grpc::Status& status, std::string why);
  // It was lost, and no epoch will begin.
  void GiveUp(std::string why);

  // While serving: sends every plan the engine has.
  void Schedule(absl::Time now);
  // Returns how long the step took since its turn came.
  absl::StatusOr<absl::Duration> Commit(const v1::StepResult& message, absl::Time now);

  struct Overdue {
    int rank = 0;
    std::string why;
  };
  // A rank whose lease ran out, that did not join in time, or the one the others seem to wait for
  // when a step takes too long. None before OverdueAt.
  std::optional<Overdue> FindOverdue(absl::Time now) const;
  absl::Time OverdueAt() const;

  void FillStatus(absl::Time now, v1::GetStatusResponse* response) const;

 private:
  struct StepInFlight {
    uint64_t step_id = 0;
    int64_t num_tokens = 0;
    std::vector<uint32_t> sampling_slots;
    absl::Time since;  // when its turn came
  };
  void Send(const engine::StepPlan& plan, absl::Time now);
  absl::Time StepOverdueAt() const;
  absl::Time LoadOverdueAt() const;

  RosterIdentity identity_;
  const int64_t vocab_size_;
  const absl::Duration lease_;
  const absl::Duration join_timeout_;
  const absl::Duration load_timeout_;
  StepDeadline step_deadline_;
  State state_ = State::kJoining;
  std::string why_lost_;
  bool is_given_up_ = false;
  uint32_t num_losses_ = 0;
  std::unique_ptr<RankRoster> ranks_;  // null while kLost
  std::unique_ptr<engine::Engine> engine_;
  std::deque<StepInFlight> in_flight_;
};

}  // namespace lockstep
