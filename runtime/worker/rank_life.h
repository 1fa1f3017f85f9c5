// One epoch of a rank: from dialing the controller to the end of their stream
// (proto/lockstep/v1/worker.proto).
//
// What the rank said and heard in it ends with it: a result that was not sent is never sent. The
// object stays until all ranks have met again, because peers may still read its buffers
// (parallel/rendezvous.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "parallel/communicator.h"
#include "parallel/rendezvous.h"
#include "runtime/worker/controller_link.h"
#include "runtime/worker/inbox.h"
#include "runtime/worker/preflight.h"
#include "runtime/worker/rank_model.h"
#include "runtime/worker/rank_progress.h"
#include "runtime/worker/reporter.h"
#include "runtime/worker/step_loop.h"
#include "runtime/worker/worker.h"

namespace lockstep {

class RankLife {
 public:
  // What is the same in all lives of a rank outlives them.
  struct Rank {
    const WorkerOptions& options;
    RankModel& model;
    RankProgress& progress;
    RankGroups& groups;
    Rendezvous& rendezvous;
    bool all_are_loaded = false;  // the ranks, when this life begins: nothing is left to check
  };
  RankLife(const Rank& rank, uint64_t epoch);

  enum class End {
    kShutDown,   // the controller said so
    kLostTouch,  // with the controller or with other ranks, who may be found again
    kRefused,    // by the controller, at Hello: another may take it
    kFailed,     // refused later, or something is wrong here
  };
  // Occupies the calling thread; when it returns, the stream and the groups are ended. The dial's
  // check is not used.
  End Run(DialOptions dial);

  const absl::Status& cause() const { return cause_; }  // of any other end than kShutDown
  bool was_welcomed() const { return was_welcomed_; }   // by the controller
  // Told by the first plan; nobody loads any more.
  bool all_were_ready() const { return progress_.Read().last_step > 0; }

 private:
  // In order. False: Shutdown came first.
  absl::Status Live(const DialOptions& dial);
  absl::Status Connect(const DialOptions& dial);
  absl::StatusOr<bool> Join();
  absl::Status Preflight();
  absl::Status Load();
  absl::StatusOr<bool> Rehearse();
  absl::StatusOr<bool> AllocateCache();
  absl::Status Serve();
  void Leave(End end);

  End EndOf(const absl::Status& status) const;
  absl::Status CheckPeers();
  WaitCheck PeersCheck();
  void SendHello();
  void SendPreflight(const RankFacts& facts, const LinkSpeeds& speeds);
  void SendLoaded(absl::Duration took);
  void SendRehearsed();
  v1::KvRoom KvRoom() const;
  void OnMessage(const v1::ToRank& message);
  void OnClosed(const absl::Status& status);
  void OnStuck();
  void ReportLoading(int64_t bytes_done, int64_t bytes_total);
  void AbortGroups();

  const WorkerOptions& options_;
  RankModel& model_;
  RankProgress& progress_;
  RankGroups& groups_;
  Rendezvous& rendezvous_;
  const bool all_are_loaded_;
  const uint64_t epoch_;

  Inbox inbox_;
  absl::Status cause_;
  bool was_welcomed_ = false;
  bool is_refused_ = false;               // at Hello
  bool failed_here_ = false;              // no other life will do better
  std::atomic<bool> may_be_late_{false};  // it loads or allocates, for as long as that takes
  std::mutex loading_mutex_;              // of the next: loader threads report
  absl::Time loading_reported_ = absl::InfinitePast();

  PreflightMemory preflight_memory_;
  std::unique_ptr<ControllerLink> link_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<StepLoop> loop_;
};

}  // namespace lockstep
