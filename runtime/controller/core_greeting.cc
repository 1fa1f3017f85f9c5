// ControllerCore: which ranks may join.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/core.h"
#include "runtime/controller/rank_checks.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

constexpr size_t kMostToldRefusals = 64;
constexpr size_t kMostHostBytes = 255;
constexpr size_t kMostReasonBytes = 1024;

}  // namespace

void ControllerCore::Greet(std::shared_ptr<RankPort> port, const v1::Hello& hello, absl::Time now) {
  const absl::Status joined = Join(port, hello, now);
  if (!joined.ok()) {
    port->Close(ToGrpcStatus(joined));
    return;
  }
  const Replica& replica = *replicas_[hello.replica()];
  v1::ToRank message;
  message.mutable_welcome()->set_heartbeat_interval_ms(
      absl::ToInt64Milliseconds(config_.heartbeat_interval));
  port->Send(SerializeMessage(message));
  output_.Tell(EventOf(ControllerEvent::Kind::kRankJoined, replica, hello.rank(), now));
  WarnOfAnotherGpu(replica, hello);
  SetPhase(state_.phase, Progress());
}

RosterIdentity ControllerCore::IdentityOf(int replica, uint64_t epoch) const {
  // As asked; else the model's: how much of that the cache allows is known later.
  const int64_t max_model_len =
      config_.max_model_len > 0 ? config_.max_model_len : config_.max_position_embeddings;
  return {.replica = replica,
          .grid = config_.grid,
          .epoch = epoch,
          .version = config_.version,
          .model_fingerprint = config_.model_fingerprint,
          .tokenizer_fingerprint = config_.tokenizer_fingerprint,
          .limits = {.block_size = config_.engine.block_size,
                     .max_num_seqs = config_.engine.max_num_seqs,
                     .max_batched_tokens = config_.engine.max_batched_tokens,
                     .max_model_len = max_model_len}};
}

// Whatever its epoch.
absl::Status ControllerCore::CheckHello(const v1::Hello& hello) {
  if (hello.replica() < 0 || hello.replica() >= config_.num_replicas) {
    return absl::InvalidArgumentError(absl::StrCat("replica ", hello.replica(), " is outside [0, ",
                                                   config_.num_replicas - 1, "]"));
  }
  RETURN_IF_ERROR(RankRoster::CheckHello(hello, IdentityOf(hello.replica(), hello.epoch())));
  return CheckAgreedNumerics(hello.numerics());
}

absl::Status ControllerCore::Join(std::shared_ptr<RankPort> port, const v1::Hello& hello,
                                  absl::Time now) {
  if (ended_) return absl::UnavailableError("the server is shutting down");
  if (const absl::Status fits = CheckHello(hello); !fits.ok()) {
    TellRefusal(hello, fits);
    return fits;
  }
  Replica& replica = *replicas_[hello.replica()];
  if (config_.adopt_epochs && hello.epoch() > replica.epoch()) {
    BeginEpoch(replica.index(), hello.epoch(), now);
  }
  const bool is_lost = replica.state() == Replica::State::kLost;
  if (config_.adopt_epochs && hello.epoch() < replica.epoch()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "epoch ", hello.epoch(), " is over, the last was ", replica.epoch(),
        is_lost ? absl::StrCat(" (", replica.Detail(), ")") : "",
        ": ranks that are started to replace those need a higher one, which they take from their "
        "clocks; if these are behind, set them or start the ranks with --epoch N"));
  }
  if (is_lost) {
    const std::string why =
        absl::StrCat("epoch ", hello.epoch(), ": no ranks of epoch ", replica.epoch(),
                     " are wanted any more: ", replica.Detail());
    // Lost before all of its ranks had come: they may begin another.
    return config_.adopt_epochs ? absl::AbortedError(why) : absl::FailedPreconditionError(why);
  }
  return replica.ranks().Join(std::move(port), hello, now);
}

// Once, as such ranks may dial again and again. Who starts the ranks himself hears it from them.
void ControllerCore::TellRefusal(const v1::Hello& hello, const absl::Status& why) {
  if (!config_.adopt_epochs || told_refusals_.size() >= kMostToldRefusals) return;
  const std::string reason(why.message().substr(0, kMostReasonBytes));
  if (!told_refusals_.insert(reason).second) return;
  ControllerEvent event = EventOf(ControllerEvent::Kind::kWarning);
  event.message = absl::StrCat("ranks of replica ", hello.replica(), " on ",
                               hello.host().substr(0, kMostHostBytes), " are refused: ", reason);
  output_.Tell(event);
}

// --- how ranks compute ---

// What was agreed holds as long as somebody could see the difference: ranks that serve, or were
// told to, hand requests to those that come, and what they have computed of a request would be
// continued in another way. When all of them are gone and no unfinished request has tokens, ranks
// of any kind may come: requests that wait begin with them (prefix caches end with their ranks).
// What clients and the journal bring of an earlier controller's ranks tells nothing of those;
// whoever comes first continues it.
bool ControllerCore::NumericsBind() const {
  return std::any_of(replicas_.begin(), replicas_.end(),
                     [](const auto& replica) {
                       return replica->serving() || (replica->state() == Replica::State::kJoining &&
                                                     replica->ranks().WereToldToStart());
                     }) ||
         requests_.AnyHasTokens();
}

absl::Status ControllerCore::CheckAgreedNumerics(const v1::Numerics& numerics) {
  if (!NumericsBind()) agreed_numerics_.reset();
  if (!agreed_numerics_.has_value()) return absl::OkStatus();
  return CheckSameNumerics(numerics, *agreed_numerics_, "the first ranks'");
}

// Once: there may be many of them.
void ControllerCore::WarnOfAnotherGpu(const Replica& replica, const v1::Hello& hello) {
  const std::string& first = agreed_numerics_.has_value()
                                 ? agreed_numerics_->gpu()
                                 : replica.ranks().FirstHello()->numerics().gpu();
  if (hello.numerics().gpu() == first || std::exchange(has_warned_of_gpus_, true)) return;
  ControllerEvent event = EventOf(ControllerEvent::Kind::kWarning);
  event.message =
      absl::StrCat("replica ", replica.index(), ", rank ", hello.rank(), " on ", hello.host(),
                   " computes on ", hello.numerics().gpu(), ", the first ranks on ", first,
                   ": kinds of GPUs round differently, so that a request that moves may go on with "
                   "another text");
  output_.Tell(event);
}

}  // namespace lockstep
