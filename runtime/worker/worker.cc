#include "runtime/worker/worker.h"

#include <unistd.h>

#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "runtime/worker/controller_link.h"
#include "runtime/worker/inbox.h"
#include "runtime/worker/rank_progress.h"
#include "runtime/worker/reporter.h"
#include "runtime/worker/step_loop.h"

namespace lockstep {
namespace {

const absl::Duration kLoadingInterval = absl::Milliseconds(100);
const absl::Duration kFinishTimeout = absl::Seconds(1);
constexpr int64_t kMinHeartbeatMs = 10;
constexpr int64_t kMaxHeartbeatMs = 3600 * 1000;

absl::Status CheckOptions(const WorkerOptions& options, const RankGroups& groups) {
  const ProcessGrid& grid = options.grid;
  if (options.rank < 0 || options.rank >= grid.world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is outside [0, ", grid.world_size() - 1, "]"));
  }
  if (groups.tp->size() != grid.tp() || groups.tp->rank() != grid.tp_rank_of(options.rank) ||
      groups.pp->size() != grid.pp() || groups.pp->rank() != grid.stage_of(options.rank)) {
    return absl::InvalidArgumentError(absl::StrCat("the communicators of rank ", options.rank,
                                                   " do not fit tp ", grid.tp(), ", pp ",
                                                   grid.pp()));
  }
  if (options.num_kv_blocks.has_value() && *options.num_kv_blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_kv_blocks is ", *options.num_kv_blocks, ", must be at least 1"));
  }
  return absl::OkStatus();
}

// What Linux says can be had without swapping; a large number where it says nothing.
int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string field;
  int64_t kib = 0;
  for (std::string unit; meminfo >> field >> kib; std::getline(meminfo, unit)) {
    if (field == "MemAvailable:") return kib * 1024;
  }
  return int64_t{1} << 60;
}

// Blocks of this rank's cache: those asked for, or those that fit. RESOURCE_EXHAUSTED when there is
// no room.
absl::StatusOr<int64_t> MaxKvBlocks(const WorkerOptions& options, int64_t block_bytes) {
  const int64_t available = AvailableMemoryBytes();
  if (options.num_kv_blocks.has_value()) {
    if (*options.num_kv_blocks > available / block_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          *options.num_kv_blocks, " KV blocks of ", block_bytes, " bytes need more than the ",
          available, " bytes of memory available: lower --num-kv-blocks"));
    }
    return *options.num_kv_blocks;
  }
  if (options.kv_cache_bytes < block_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a KV cache of ", options.kv_cache_bytes,
                                                     " bytes holds no block of ", block_bytes,
                                                     " bytes: raise --kv-cache-gib"));
  }
  if (options.kv_cache_bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a KV cache of ", options.kv_cache_bytes, " bytes exceeds the ", available,
                     " bytes of memory available: lower --kv-cache-gib"));
  }
  return options.kv_cache_bytes / block_bytes;
}

// Members are destroyed in reverse order; Run ends the threads before that.
class Worker {
 public:
  Worker(const WorkerOptions& options, RankGroups& groups) : options_(options), groups_(groups) {}

  absl::Status Run();

 private:
  // The life of proto/lockstep/v1/worker.proto, in order. False: Shutdown came first.
  absl::Status Live();
  absl::StatusOr<bool> Join();
  absl::Status Load();
  absl::StatusOr<bool> AllocateCache();
  absl::Status Serve();

  void OnMessage(const v1::ToRank& message);
  void OnClosed(const absl::Status& status);
  void OnStuck();
  void ReportLoading(int64_t bytes_done, int64_t bytes_total);
  void AbortGroups();

  const WorkerOptions& options_;
  RankGroups& groups_;
  RankProgress progress_;
  Inbox inbox_;
  std::mutex loading_mutex_;  // of the next: loader threads report
  absl::Time loading_reported_ = absl::InfinitePast();

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<LlamaStage> stage_;
  int64_t max_kv_blocks_ = 0;
  int64_t num_kv_blocks_ = 0;
  std::unique_ptr<ControllerLink> link_;
  std::unique_ptr<Reporter> reporter_;
};

void Worker::AbortGroups() {
  groups_.tp->Abort();
  groups_.pp->Abort();
}

void Worker::OnMessage(const v1::ToRank& message) {
  if (absl::Status status = inbox_.Put(message); !status.ok()) {
    inbox_.Fail(status);
    AbortGroups();
  } else if (message.has_shutdown()) {
    reporter_->ExpectEnd(options_.stop_grace);
  }
}

void Worker::OnClosed(const absl::Status& status) {
  if (!inbox_.shut_down()) {
    inbox_.Fail(status);
    AbortGroups();
  }
  reporter_->ExpectEnd(options_.stop_grace);
}

void Worker::OnStuck() {
  AbortGroups();
  if (options_.on_stuck == nullptr) return;
  const RankProgress::Snapshot snapshot = progress_.Read();
  options_.on_stuck(absl::UnavailableError(
      absl::StrCat("rank ", options_.rank, " must end but is in: ", snapshot.operation, ", for ",
                   snapshot.operation_age_ms, " ms")));
}

absl::StatusOr<bool> Worker::Join() {
  v1::FromRank message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_secret(options_.secret);
  hello->set_epoch(options_.epoch);
  hello->set_replica(options_.replica);
  hello->set_rank(options_.rank);
  hello->set_world_size(options_.grid.world_size());
  hello->set_tensor_parallel(options_.grid.tp());
  hello->set_pipeline_parallel(options_.grid.pp());
  hello->set_host(options_.host);
  hello->set_pid(getpid());
  hello->set_version(options_.version);
  hello->set_model_fingerprint(checkpoint_->config().Fingerprint());
  link_->Send(std::move(message));
  ASSIGN_OR_RETURN(const std::optional<v1::Welcome> welcome, inbox_.WaitWelcome());
  if (!welcome.has_value()) return false;
  const int64_t interval_ms = welcome->heartbeat_interval_ms();
  if (interval_ms < kMinHeartbeatMs || interval_ms > kMaxHeartbeatMs) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_interval_ms is ", interval_ms,
                                                   ", must be ", kMinHeartbeatMs, " to ",
                                                   kMaxHeartbeatMs));
  }
  reporter_->StartHeartbeats(absl::Milliseconds(interval_ms));
  return true;
}

void Worker::ReportLoading(int64_t bytes_done, int64_t bytes_total) {
  std::lock_guard lock(loading_mutex_);
  const absl::Time now = absl::Now();
  if (now - loading_reported_ < kLoadingInterval && bytes_done < bytes_total) return;
  loading_reported_ = now;
  const int64_t percent = bytes_total > 0 ? bytes_done / (bytes_total / 100 + 1) : 100;
  progress_.Begin(Operation::kLoading, static_cast<uint64_t>(percent));
  v1::FromRank message;
  message.mutable_loading()->set_bytes_done(bytes_done);
  message.mutable_loading()->set_bytes_total(bytes_total);
  link_->Send(std::move(message));
}

absl::Status Worker::Load() {
  const absl::Time begin = absl::Now();
  progress_.Begin(Operation::kLoading, 0);
  ASSIGN_OR_RETURN(backend_, MakeCpuBackend(options_.backend));
  ASSIGN_OR_RETURN(
      stage_, LlamaStage::Load(*checkpoint_, options_.grid, options_.rank, *backend_, groups_,
                               options_.stage, [this](int64_t bytes_done, int64_t bytes_total) {
                                 ReportLoading(bytes_done, bytes_total);
                               }));
  ASSIGN_OR_RETURN(max_kv_blocks_, MaxKvBlocks(options_, stage_->kv_block_bytes()));
  const LoadStats& stats = stage_->load_stats();
  v1::FromRank message;
  v1::Loaded* loaded = message.mutable_loaded();
  loaded->set_weight_bytes(stats.weight_bytes);
  loaded->set_loaded_bytes(stats.loaded_bytes);
  loaded->set_shard_bytes(stats.shard_bytes);
  loaded->set_load_ms(absl::ToInt64Milliseconds(absl::Now() - begin));
  loaded->set_kv_block_bytes(stage_->kv_block_bytes());
  loaded->set_max_kv_blocks(max_kv_blocks_);
  loaded->set_backend(backend_->Description());
  link_->Send(std::move(message));
  return absl::OkStatus();
}

absl::StatusOr<bool> Worker::AllocateCache() {
  progress_.Begin(Operation::kIdle);
  ASSIGN_OR_RETURN(const std::optional<v1::StartServing> start, inbox_.WaitStart());
  if (!start.has_value()) return false;
  num_kv_blocks_ = start->num_kv_blocks();
  if (num_kv_blocks_ < 1 || num_kv_blocks_ > max_kv_blocks_) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_kv_blocks is ", num_kv_blocks_, ", must be 1 to ", max_kv_blocks_));
  }
  progress_.Begin(Operation::kAllocatingCache);
  RETURN_IF_ERROR(stage_->AllocateKvCache(num_kv_blocks_));
  v1::FromRank message;
  message.mutable_ready()->set_kv_cache_bytes(num_kv_blocks_ * stage_->kv_block_bytes());
  link_->Send(std::move(message));
  return true;
}

absl::Status Worker::Serve() {
  const ModelConfig& config = checkpoint_->config();
  const StepLoopOptions loop_options{.limits = options_.stage.limits,
                                     .num_blocks = num_kv_blocks_,
                                     .vocab_size = config.vocab_size,
                                     .eos_token_ids = config.eos_token_ids};
  StageCalls calls{
      .forward = [this](const StepBatch& batch) { return stage_->Forward(batch); },
      .logits = [this](int64_t first, int64_t count) { return stage_->Logits(first, count); },
      .max_logits_rows = LlamaStage::kMaxLogitsRows};
  StepLoop loop(loop_options, std::move(calls), groups_, progress_,
                [this](engine::StepResult result) { reporter_->Report(std::move(result)); });
  return loop.Run(inbox_.plans());
}

absl::Status Worker::Live() {
  ASSIGN_OR_RETURN(const bool joined, Join());
  if (!joined) return absl::OkStatus();
  RETURN_IF_ERROR(Load());
  ASSIGN_OR_RETURN(const bool started, AllocateCache());
  return started ? Serve() : absl::OkStatus();
}

absl::Status Worker::Run() {
  RETURN_IF_ERROR(CheckOptions(options_, groups_));
  ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(options_.model));
  ASSIGN_OR_RETURN(link_, ControllerLink::Dial(options_.controller_address, options_.dial,
                                               options_.dial_timeout));
  reporter_ = std::make_unique<Reporter>(*link_, progress_, [this] { OnStuck(); });
  link_->Start({.on_message = [this](const v1::ToRank& message) { OnMessage(message); },
                .on_closed = [this](const absl::Status& status) { OnClosed(status); }});
  absl::Status status = Live();
  // Groups aborted because the stream ended: that is the cause to tell.
  if (!status.ok()) status = inbox_.CauseOf(std::move(status));
  if (!status.ok()) {
    v1::FromRank message;
    message.mutable_failure()->set_message(std::string(status.message()));
    link_->Send(std::move(message));
  }
  reporter_->Finish();
  link_->Finish(kFinishTimeout);
  link_->End();
  if (!status.ok()) AbortGroups();
  return status;
}

}  // namespace

absl::Status RunWorker(const WorkerOptions& options, RankGroups& groups) {
  return Worker(options, groups).Run();
}

}  // namespace lockstep
