#include "runtime/worker/worker.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "parallel/renewable_communicator.h"
#include "runtime/worker/rank_identity.h"
#include "runtime/worker/rank_life.h"
#include "runtime/worker/rank_model.h"

namespace lockstep {
namespace {

// Between lives that the controller ended before it welcomed them, and between attempts to dial.
const absl::Duration kFirstPause = absl::Milliseconds(100);
const absl::Duration kLongestPause = absl::Seconds(5);
const absl::Duration kShortestDial = absl::Seconds(1);  // of those that dial again
const absl::Duration kLook = absl::Milliseconds(50);

absl::Status CheckOptions(const WorkerOptions& options) {
  const ProcessGrid& grid = options.grid;
  if (options.rank < 0 || options.rank >= grid.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is outside [0, ", grid.world_size() - 1, "]"));
  }
  if (options.num_kv_blocks.has_value() && *options.num_kv_blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_kv_blocks is ", *options.num_kv_blocks, ", must be at least 1"));
  }
  if (options.kv_offload_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_offload_bytes is ", options.kv_offload_bytes, ", must not be below 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const WorkerOptions& options, const RankGroups& groups) {
  const ProcessGrid& grid = options.grid;
  if (groups.tp->size() != grid.tp() || groups.tp->rank() != grid.tp_rank_of(options.rank) ||
      groups.pp->size() != grid.pp() || groups.pp->rank() != grid.stage_of(options.rank)) {
    return absl::InvalidArgumentError(absl::StrCat("the communicators of rank ", options.rank,
                                                   " do not fit tp ", grid.tp(), ", pp ",
                                                   grid.pp()));
  }
  return absl::OkStatus();
}

// A life after the other, until the controller ends the last or there is no way on.
class Worker {
 public:
  Worker(const WorkerOptions& options, Rendezvous& rendezvous)
      : options_(options), rendezvous_(rendezvous) {}

  absl::Status Run();

 private:
  // Waits for the other ranks, takes the groups of the next round and makes sure that they are
  // ranks of one replica. False: a rank was told to shut down instead.
  absl::StatusOr<bool> Meet(absl::Duration timeout);
  void TakeGroups(RankGroups groups);
  // All ranks have what they must have in common.
  absl::Status Compare();
  bool MayLiveAgain(RankLife::End end) const;
  absl::StatusOr<bool> Rejoin();
  absl::Duration NextPause() const { return std::clamp(2 * pause_, kFirstPause, kLongestPause); }
  void PauseBetweenLives();
  DialOptions Dialing() const;
  uint64_t ProposedEpoch() const;
  absl::Duration Window() const { return std::max(options_.dial_timeout, options_.rejoin_window); }
  void Notice(const std::string& text) const {
    if (options_.on_notice != nullptr) options_.on_notice(text);
  }

  const WorkerOptions& options_;
  Rendezvous& rendezvous_;
  RenewableCommunicator* tp_ = nullptr;  // in groups_
  RenewableCommunicator* pp_ = nullptr;
  RankGroups groups_;
  std::unique_ptr<IdentityExchange> exchange_;  // of this round
  bool all_are_loaded_ = false;                 // when it began
  RankProgress progress_;
  std::unique_ptr<RankModel> model_;
  std::unique_ptr<RankLife> life_;
  uint64_t epoch_ = 0;
  int num_lives_ = 0;
  absl::Time out_of_touch_since_;  // later by what ranks took to join each other meanwhile
  absl::Duration pause_;           // before the next life
  std::string told_cause_;         // why there is another life
  absl::BitGen random_;
};

// A clock that is set back must not lower it.
uint64_t Worker::ProposedEpoch() const {
  const uint64_t drawn =
      options_.epoch > 0 ? options_.epoch : static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()));
  return std::max(drawn, epoch_ + 1);
}

void Worker::TakeGroups(RankGroups groups) {
  tp_->Renew(std::move(groups.tp));
  pp_->Renew(std::move(groups.pp));
  groups_.most_whole_bytes_from_previous = groups.most_whole_bytes_from_previous;
  groups_.most_whole_bytes_to_next = groups.most_whole_bytes_to_next;
  groups_.most_undivided_bytes = groups.most_undivided_bytes;
}

absl::Status Worker::Compare() {
  exchange_ = std::make_unique<IdentityExchange>();
  ASSIGN_OR_RETURN(const std::vector<RankIdentity> ranks,
                   exchange_->Run(options_.grid, groups_, model_->Identity()));
  all_are_loaded_ = std::all_of(ranks.begin(), ranks.end(),
                                [](const RankIdentity& rank) { return rank.is_loaded; });
  return CheckIdentities(options_.grid, ranks);
}

absl::StatusOr<bool> Worker::Meet(absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (true) {
    absl::StatusOr<Rendezvous::Round> round = rendezvous_.Next(ProposedEpoch(), timeout);
    if (absl::IsCancelled(round.status())) return false;
    RETURN_IF_ERROR(round.status());
    RETURN_IF_ERROR(CheckGroups(options_, round->groups));
    epoch_ = round->epoch;
    TakeGroups(std::move(round->groups));
    const absl::Time before = SteadyNow();
    const absl::Status alike = Compare();
    if (absl::IsUnavailable(alike) && options_.rejoins() && SteadyNow() < deadline) {
      // A rank that was through lost its controller at once, and left this round.
      groups_.tp->Abort();
      groups_.pp->Abort();
      continue;
    }
    RETURN_IF_ERROR(alike);
    RETURN_IF_ERROR(model_->Join(groups_));  // NCCL may take its time to start
    out_of_touch_since_ += SteadyNow() - before;
    return true;
  }
}

DialOptions Worker::Dialing() const {
  DialOptions dial;
  const absl::Duration left = out_of_touch_since_ + Window() - SteadyNow();
  dial.timeout = std::max(absl::ZeroDuration(), absl::Ceil(left, absl::Milliseconds(100)));
  if (num_lives_ > 1) {
    dial.timeout = std::max(dial.timeout, kShortestDial);
    dial.first_pause = kFirstPause;
    dial.longest_pause = kLongestPause;
  }
  return dial;
}

// With jitter, so that many ranks do not come all at once.
void Worker::PauseBetweenLives() {
  const absl::Time end = SteadyNow() + pause_ * absl::Uniform(random_, 0.5, 1.0);
  while (SteadyNow() < end && !rendezvous_.Over()) {
    absl::SleepFor(std::min(kLook, end - SteadyNow()));
  }
}

// Ranks that hold their weights were welcomed once: what the next controller refuses at Hello shall
// not cost them, so they wait for one that takes them.
bool Worker::MayLiveAgain(RankLife::End end) const {
  if (!options_.rejoins()) return false;
  if (end != RankLife::End::kRefused) return end == RankLife::End::kLostTouch;
  return all_are_loaded_ && SteadyNow() + NextPause() < out_of_touch_since_ + Window();
}

absl::StatusOr<bool> Worker::Rejoin() {
  if (life_->was_welcomed()) {
    out_of_touch_since_ = SteadyNow();
    pause_ = absl::ZeroDuration();
  } else {
    pause_ = NextPause();
  }
  const std::string cause(life_->cause().message());
  if (life_->was_welcomed() || cause != told_cause_) {
    Notice(absl::StrCat(cause, "; dialing again for up to ", absl::FormatDuration(Window())));
  }
  told_cause_ = cause;
  // Whoever loads has not failed; once all were ready, nobody loads any more.
  const bool may_load = !life_->all_were_ready();
  ASSIGN_OR_RETURN(const bool met, Meet(may_load ? std::max(Window(), options_.gather_timeout)
                                                 : options_.gather_timeout));
  life_.reset();
  if (met) PauseBetweenLives();
  return met;
}

absl::Status Worker::Run() {
  RETURN_IF_ERROR(CheckOptions(options_));
  groups_.tp = std::make_unique<RenewableCommunicator>(MakeSelfCommunicator());
  groups_.pp = std::make_unique<RenewableCommunicator>(MakeSelfCommunicator());
  tp_ = static_cast<RenewableCommunicator*>(groups_.tp.get());
  pp_ = static_cast<RenewableCommunicator*>(groups_.pp.get());
  ASSIGN_OR_RETURN(model_, RankModel::Open(options_, progress_));
  ASSIGN_OR_RETURN(bool met, Meet(std::max(Window(), options_.start_timeout)));
  out_of_touch_since_ = SteadyNow();
  while (met) {
    ++num_lives_;
    life_ = std::make_unique<RankLife>(
        RankLife::Rank{options_, *model_, progress_, groups_, rendezvous_, all_are_loaded_},
        epoch_);
    const RankLife::End end = life_->Run(Dialing());
    if (end == RankLife::End::kShutDown) break;
    if (!MayLiveAgain(end)) return life_->cause();
    ASSIGN_OR_RETURN(met, Rejoin());
  }
  if (options_.rejoins()) rendezvous_.Leave();
  return absl::OkStatus();
}

}  // namespace

absl::Status RunWorker(const WorkerOptions& options, Rendezvous& rendezvous) {
  return Worker(options, rendezvous).Run();
}

}  // namespace lockstep
