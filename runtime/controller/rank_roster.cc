#include "runtime/controller/rank_roster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "runtime/controller/rank_checks.h"
#include "runtime/controller/wire.h"

namespace lockstep {
namespace {

constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxOperationBytes = 512;
constexpr double kMaxLinkValue = 1e15;

constexpr absl::Duration kOldWord = absl::Milliseconds(100);  // of what a rank told

template <typename T>
absl::Status CheckEqual(absl::string_view what, const T& shown, const T& expected) {
  if (shown == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " ", shown, " does not match the controller's ", expected));
}

// The flag's name: ranks whose limits differ were placed by hand.
absl::Status CheckRoom(absl::string_view flag, int64_t offered, int64_t needed) {
  if (offered >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(flag, " ", offered, " is less than the controller's ", needed));
}

absl::Status CheckLimits(const v1::RankLimits& offered, const StepLimits& needed) {
  RETURN_IF_ERROR(CheckCount("RankLimits.block_size", offered.block_size(), 1));
  RETURN_IF_ERROR(CheckCount("RankLimits.max_num_seqs", offered.max_num_seqs(), 1));
  RETURN_IF_ERROR(CheckCount("RankLimits.max_batched_tokens", offered.max_batched_tokens(), 1));
  RETURN_IF_ERROR(CheckCount("RankLimits.max_model_len", offered.max_model_len(), 1));
  RETURN_IF_ERROR(CheckEqual("--block-size", offered.block_size(), needed.block_size));
  RETURN_IF_ERROR(CheckRoom("--max-num-seqs", offered.max_num_seqs(), needed.max_num_seqs));
  RETURN_IF_ERROR(
      CheckRoom("--max-batched-tokens", offered.max_batched_tokens(), needed.max_batched_tokens));
  return CheckRoom("--max-model-len", offered.max_model_len(), needed.max_model_len);
}

}  // namespace

RankRoster::RankRoster(RosterIdentity identity, absl::Time now)
    : identity_(std::move(identity)), last_progress_(now), ranks_(identity_.grid.world_size()) {}

absl::Status RankRoster::CheckHello(const v1::Hello& hello, const RosterIdentity& identity) {
  const ProcessGrid& grid = identity.grid;
  RETURN_IF_ERROR(CheckEqual("replica", hello.replica(), identity.replica));
  RETURN_IF_ERROR(CheckEqual("world_size", hello.world_size(), grid.world_size()));
  RETURN_IF_ERROR(CheckEqual("tensor_parallel", hello.tensor_parallel(), grid.tp()));
  RETURN_IF_ERROR(CheckEqual("pipeline_parallel", hello.pipeline_parallel(), grid.pp()));
  if (!identity.version.empty() && hello.version() != identity.version) {
    return absl::FailedPreconditionError(
        absl::StrCat("version ", hello.version(), " does not match the controller's ",
                     identity.version, ": start the older one again"));
  }
  RETURN_IF_ERROR(CheckEqual("model", hello.model_fingerprint(), identity.model_fingerprint));
  if (!identity.tokenizer_fingerprint.empty()) {
    RETURN_IF_ERROR(CheckEqual("tokenizer.json", hello.tokenizer_fingerprint(),
                               identity.tokenizer_fingerprint));
  }
  RETURN_IF_ERROR(CheckLimits(hello.limits(), identity.limits));
  RETURN_IF_ERROR(CheckNumerics(hello.numerics()));
  if (hello.rank() < 0 || hello.rank() >= grid.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", hello.rank(), " is outside [0, ", grid.world_size() - 1, "]"));
  }
  if (hello.host().size() > kMaxHostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("host has ", hello.host().size(), " bytes, at most ", kMaxHostBytes));
  }
  return absl::OkStatus();
}

absl::Status RankRoster::Join(std::shared_ptr<RankPort> link, const v1::Hello& hello,
                              absl::Time now) {
  RETURN_IF_ERROR(CheckEqual("epoch", hello.epoch(), identity_.epoch));
  if (const v1::Hello* first = FirstHello()) {
    RETURN_IF_ERROR(CheckSameNumerics(hello.numerics(), first->numerics(),
                                      absl::StrCat("rank ", first->rank(), "'s")));
  }
  Rank& rank = ranks_[hello.rank()];
  if (rank.stage != Stage::kAbsent) {
    return absl::AlreadyExistsError(absl::StrCat("rank ", hello.rank(), " has joined already, pid ",
                                                 rank.hello.pid(), " on ", rank.hello.host()));
  }
  if (num_joined_++ == 0) first_joined_at_ = now;
  if (AllJoined()) all_joined_at_ = now;
  rank.stage = Stage::kLoading;
  rank.link = std::move(link);
  rank.hello = hello;
  rank.last_seen = rank.heartbeat_at = last_progress_ = now;
  return absl::OkStatus();
}

const v1::Hello* RankRoster::FirstHello() const {
  const auto first = std::find_if(ranks_.begin(), ranks_.end(),
                                  [](const Rank& rank) { return rank.stage != Stage::kAbsent; });
  return first == ranks_.end() ? nullptr : &first->hello;
}

int RankRoster::RankOf(const RankPort* link) const {
  const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& candidate) {
    return candidate.link.get() == link;
  });
  return rank == ranks_.end() ? -1 : static_cast<int>(rank - ranks_.begin());
}

absl::Status RankRoster::CheckStage(int rank, Stage expected, const char* message) const {
  if (ranks_[rank].stage == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("it sent ", message, " out of order"));
}

absl::Status RankRoster::OnPreflight(int rank, const v1::Preflight& preflight) const {
  RETURN_IF_ERROR(CheckStage(rank, Stage::kLoading, "Preflight"));
  RETURN_IF_ERROR(CheckCount("Preflight.needed_memory_bytes", preflight.needed_memory_bytes()));
  RETURN_IF_ERROR(
      CheckCount("Preflight.available_memory_bytes", preflight.available_memory_bytes()));
  if (preflight.has_gpu()) RETURN_IF_ERROR(CheckGpu(preflight.gpu()));
  for (const v1::LinkSpeed* link : {&preflight.tensor_parallel(), &preflight.next_stage()}) {
    // Written so that NaN is refused too.
    if (link->latency_us() >= 0 && link->latency_us() <= kMaxLinkValue &&
        link->bytes_per_second() >= 0 && link->bytes_per_second() <= kMaxLinkValue) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat("Preflight tells of a link with ",
                                                   link->latency_us(), " us and ",
                                                   link->bytes_per_second(), " bytes/s"));
  }
  return absl::OkStatus();
}

absl::Status RankRoster::OnLoading(int rank, const v1::Loading& loading, absl::Time now) {
  RETURN_IF_ERROR(CheckStage(rank, Stage::kLoading, "Loading"));
  RETURN_IF_ERROR(CheckCount("Loading.bytes_total", loading.bytes_total()));
  RETURN_IF_ERROR(CheckCount("Loading.bytes_done", loading.bytes_done()));
  if (loading.bytes_done() != ranks_[rank].loading.bytes_done()) last_progress_ = now;
  ranks_[rank].loading = loading;
  return absl::OkStatus();
}

absl::Status RankRoster::OnLoaded(int rank, const v1::Loaded& loaded, absl::Time now) {
  RETURN_IF_ERROR(CheckStage(rank, Stage::kLoading, "Loaded"));
  RETURN_IF_ERROR(CheckCount("Loaded.weight_bytes", loaded.weight_bytes()));
  RETURN_IF_ERROR(CheckCount("Loaded.loaded_bytes", loaded.loaded_bytes()));
  RETURN_IF_ERROR(CheckCount("Loaded.shard_bytes", loaded.shard_bytes()));
  RETURN_IF_ERROR(CheckCount("Loaded.mapped_bytes", loaded.mapped_bytes()));
  RETURN_IF_ERROR(CheckCount("Loaded.kv_block_bytes", loaded.kv_block_bytes(), 1));
  RETURN_IF_ERROR(CheckKvBlocks("Loaded.max_host_blocks", loaded.max_host_blocks()));
  RETURN_IF_ERROR(CheckKvRoom(loaded.kv_room()));
  last_progress_ = now;
  ranks_[rank].stage = Stage::kLoaded;
  ranks_[rank].loaded = loaded;
  ranks_[rank].kv_room = loaded.kv_room();
  ++num_loaded_;
  return absl::OkStatus();
}

absl::Status RankRoster::OnRehearsed(int rank, const v1::Rehearsed& rehearsed, absl::Time now) {
  RETURN_IF_ERROR(CheckStage(rank, Stage::kRehearsing, "Rehearsed"));
  RETURN_IF_ERROR(CheckKvRoom(rehearsed.kv_room()));
  last_progress_ = now;
  ranks_[rank].stage = Stage::kLoaded;
  ranks_[rank].kv_room = rehearsed.kv_room();
  --num_rehearsing_;
  return absl::OkStatus();
}

absl::Status RankRoster::OnReady(int rank, const v1::Ready& ready) {
  RETURN_IF_ERROR(CheckStage(rank, Stage::kStarting, "Ready"));
  RETURN_IF_ERROR(CheckCount("Ready.kv_cache_bytes", ready.kv_cache_bytes()));
  ranks_[rank].stage = Stage::kReady;
  ranks_[rank].ready = ready;
  ranks_[rank].heartbeat.set_operation("idle");  // the last heartbeat tells of loading
  ++num_ready_;
  return absl::OkStatus();
}

absl::Status RankRoster::OnHeartbeat(int rank, const v1::Heartbeat& heartbeat, absl::Time now) {
  RETURN_IF_ERROR(CheckCount("Heartbeat.operation_age_ms", heartbeat.operation_age_ms()));
  if (heartbeat.operation().size() > kMaxOperationBytes) {
    return absl::InvalidArgumentError(absl::StrCat("Heartbeat.operation has ",
                                                   heartbeat.operation().size(), " bytes, at most ",
                                                   kMaxOperationBytes));
  }
  const v1::Heartbeat& last = ranks_[rank].heartbeat;
  if (heartbeat.last_step() != last.last_step() || heartbeat.operation() != last.operation() ||
      heartbeat.operation_sequence() != last.operation_sequence()) {
    last_progress_ = now;
  }
  ranks_[rank].heartbeat = heartbeat;
  ranks_[rank].heartbeat_at = now;
  return absl::OkStatus();
}

absl::Status RankRoster::CheckMayReport(int rank) const {
  if (!AllReady()) return absl::FailedPreconditionError("it sent a StepResult out of order");
  const int reporter = identity_.grid.rank_of(identity_.grid.pp() - 1, 0);
  if (rank == reporter) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it sent a StepResult, which only rank ", reporter, " may"));
}

void RankRoster::Saw(int rank, absl::Time now) { ranks_[rank].last_seen = now; }

absl::Time RankRoster::waiting_for_ranks_since() const {
  return AllJoined() ? absl::InfiniteFuture() : first_joined_at_;
}

std::string RankRoster::MissingRanks() const {
  std::string missing;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].stage != Stage::kAbsent) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", rank);
  }
  return missing;
}

int RankRoster::FirstMissing() const {
  const auto missing = std::find_if(ranks_.begin(), ranks_.end(),
                                    [](const Rank& rank) { return rank.stage == Stage::kAbsent; });
  return missing == ranks_.end() ? -1 : static_cast<int>(missing - ranks_.begin());
}

std::string RankRoster::Progress() const {
  return absl::StrCat(num_joined_, " of ", identity_.grid.world_size(), " ranks joined, ",
                      num_loaded_, " loaded, epoch ", identity_.epoch);
}

bool RankRoster::MustRehearse() const {
  LS_CHECK(AllLoaded());
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return !rank.loaded.has_kv_room(); });
}

int RankRoster::SmallestRank() const {
  LS_CHECK(AllLoaded() && AllRehearsed());
  const auto smallest =
      std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
        return a.kv_room.max_kv_blocks() < b.kv_room.max_kv_blocks();
      });
  return static_cast<int>(smallest - ranks_.begin());
}

int RankRoster::TightestRank() const {
  LS_CHECK(AllLoaded() && AllRehearsed());
  const auto tightest =
      std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
        return a.kv_room.most_kv_blocks() < b.kv_room.most_kv_blocks();
      });
  return static_cast<int>(tightest - ranks_.begin());
}

int64_t RankRoster::FewestHostBlocks() const {
  LS_CHECK(AllLoaded());
  int64_t fewest = kMaxKvBlocks;
  for (const Rank& rank : ranks_) fewest = std::min(fewest, rank.loaded.max_host_blocks());
  return fewest;
}

// A GPU reads its memory some 60 times as fast as its host's over PCIe (H100 SXM: 3.35 TB/s and 55
// GB/s of 64).
int64_t RankRoster::FewestPrefetchedBlocks() const {
  LS_CHECK(AllLoaded());
  constexpr int64_t kBytesReadForOneThatComes = 64;
  int64_t fewest = kMaxKvBlocks;
  for (const Rank& rank : ranks_) {
    const int64_t bytes = rank.loaded.weight_bytes() / kBytesReadForOneThatComes;
    fewest = std::min(fewest, bytes / rank.loaded.kv_block_bytes());
  }
  return std::max<int64_t>(fewest, 1);
}

void RankRoster::Rehearse() {
  v1::ToRank message;
  message.mutable_rehearse();
  for (Rank& rank : ranks_) rank.stage = Stage::kRehearsing;
  num_rehearsing_ = identity_.grid.world_size();
  SendAll(SerializeMessage(message));
}

void RankRoster::StartServing(int64_t num_kv_blocks, int64_t num_host_blocks) {
  v1::ToRank message;
  message.mutable_start()->set_num_kv_blocks(num_kv_blocks);
  message.mutable_start()->set_num_host_blocks(num_host_blocks);
  for (Rank& rank : ranks_) rank.stage = Stage::kStarting;
  were_told_to_start_ = true;
  SendAll(SerializeMessage(message));
}

void RankRoster::SendAll(const grpc::ByteBuffer& message) {
  for (Rank& rank : ranks_) {
    if (rank.link != nullptr) rank.link->Send(message);
  }
}

void RankRoster::ShutDownAll(const std::string& reason) {
  v1::ToRank message;
  message.mutable_shutdown()->set_reason(reason);
  SendAll(SerializeMessage(message));
  for (Rank& rank : ranks_) {
    if (rank.link != nullptr) rank.link->Close(grpc::Status::OK);
  }
}

void RankRoster::CloseAll(const grpc::Status& status) {
  for (Rank& rank : ranks_) {
    if (rank.link != nullptr) rank.link->CloseNow(status);
  }
}

std::string RankRoster::Describe(int rank, absl::Time now) const {
  const v1::RankStatus status = StatusOf(rank, now);
  // What it has begun since it told nobody knows: a rank that was idle may have died of a step.
  const Rank& told = ranks_[rank];
  const absl::Duration ago = absl::Trunc(now - told.heartbeat_at, absl::Milliseconds(1));
  const bool is_old = told.stage != Stage::kAbsent && ago >= kOldWord;
  return absl::StrCat(
      "rank ", rank, " (stage ", status.pipeline_stage(), ", tp_rank ", status.tp_rank(), ", pid ",
      status.pid(), " on ", status.host(), "), last operation: ", status.operation(), ", for ",
      absl::FormatDuration(absl::Milliseconds(told.heartbeat.operation_age_ms())),
      is_old ? absl::StrCat(", as it told ", absl::FormatDuration(ago), " before") : "");
}

int RankRoster::FurthestBehind() const {
  const auto behind =
      std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
        if (a.heartbeat.last_step() != b.heartbeat.last_step()) {
          return a.heartbeat.last_step() < b.heartbeat.last_step();
        }
        return a.heartbeat.operation_age_ms() > b.heartbeat.operation_age_ms();
      });
  return static_cast<int>(behind - ranks_.begin());
}

int RankRoster::LeastLoaded() const {
  const auto least =
      std::min_element(ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) {
        if (a.stage != b.stage) return a.stage < b.stage;
        return a.loading.bytes_done() < b.loading.bytes_done();
      });
  return static_cast<int>(least - ranks_.begin());
}

int RankRoster::LongestSilent() const {
  int silent = -1;
  for (int rank = 0; rank < identity_.grid.world_size(); ++rank) {
    if (ranks_[rank].stage == Stage::kAbsent) continue;
    if (silent < 0 || ranks_[rank].last_seen < ranks_[silent].last_seen) silent = rank;
  }
  return silent;
}

v1::RankStatus RankRoster::StatusOf(int index, absl::Time now) const {
  const Rank& rank = ranks_[index];
  v1::RankStatus status;
  status.set_replica(identity_.replica);
  status.set_rank(index);
  status.set_tp_rank(identity_.grid.tp_rank_of(index));
  status.set_pipeline_stage(identity_.grid.stage_of(index));
  if (rank.stage == Stage::kAbsent) {
    status.set_operation("not joined yet");
    return status;
  }
  status.set_host(rank.hello.host());
  status.set_pid(rank.hello.pid());
  status.set_last_step(rank.heartbeat.last_step());
  status.set_last_seen_ms_ago(absl::ToInt64Milliseconds(now - rank.last_seen));
  status.set_operation_age_ms(rank.heartbeat.operation_age_ms() +
                              absl::ToInt64Milliseconds(now - rank.heartbeat_at));
  if (!rank.heartbeat.operation().empty()) {
    status.set_operation(rank.heartbeat.operation());
  } else {
    status.set_operation(rank.stage == Stage::kLoading ? "loading" : "starting");
  }
  status.set_weight_bytes(rank.loaded.weight_bytes());
  status.set_mapped_bytes(rank.loaded.mapped_bytes());
  status.set_kv_cache_bytes(rank.ready.kv_cache_bytes());
  const bool loading = rank.stage == Stage::kLoading;
  status.set_loaded_bytes(loading ? rank.loading.bytes_done() : rank.loaded.loaded_bytes());
  status.set_shard_bytes(loading ? rank.loading.bytes_total() : rank.loaded.shard_bytes());
  return status;
}

void RankRoster::FillStatus(absl::Time now, v1::GetStatusResponse* response) const {
  for (int rank = 0; rank < identity_.grid.world_size(); ++rank) {
    *response->add_ranks() = StatusOf(rank, now);
  }
}

}  // namespace lockstep
