#include "runtime/worker/rank_life.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/available_memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "runtime/worker/pci_place.h"

namespace lockstep {
namespace {

const absl::Duration kLoadingInterval = absl::Milliseconds(100);
const absl::Duration kFinishTimeout = absl::Seconds(1);
constexpr int64_t kMinHeartbeatMs = 10;
constexpr int64_t kMaxHeartbeatMs = 3600 * 1000;

// Cast here and in the controller.
static_assert(static_cast<int>(DeviceLink::kNone) == v1::GpuLink::NONE &&
              static_cast<int>(DeviceLink::kPeerAccess) == v1::GpuLink::PEER_ACCESS &&
              static_cast<int>(DeviceLink::kNvLink) == v1::GpuLink::NVLINK);

void PutGpu(const RankDevice& device, v1::Gpu* into) {
  const std::vector<AcceleratorInfo>& gpus = device.gpus();
  const AcceleratorInfo& mine = gpus[static_cast<size_t>(*device.gpu())];
  const PciPlace place = FindPciPlace("/sys", mine.pci_bus_id);
  into->set_index(*device.gpu());
  into->set_name(mine.name);
  into->set_memory_bytes(mine.memory_bytes);
  into->set_pci_bus_id(mine.pci_bus_id);
  into->set_numa_node(place.numa_node);
  into->set_nearest_nic(place.nearest_nic);
  into->set_nic_distance(place.nic_distance);
  into->set_idle_nic(place.idle_nic);
  for (size_t peer = 0; peer < gpus.size(); ++peer) {
    if (static_cast<int>(peer) == *device.gpu()) continue;
    v1::GpuLink* link = into->add_links();
    link->set_pci_bus_id(gpus[peer].pci_bus_id);
    link->set_kind(static_cast<v1::GpuLink::Kind>(mine.links[peer]));
  }
}

}  // namespace

RankLife::RankLife(const Rank& rank, uint64_t epoch)
    : options_(rank.options),
      model_(rank.model),
      progress_(rank.progress),
      groups_(rank.groups),
      rendezvous_(rank.rendezvous),
      all_are_loaded_(rank.all_are_loaded),
      epoch_(epoch) {
  progress_.BeginLife();
}

RankLife::End RankLife::Run(DialOptions dial) {
  dial.check = PeersCheck();
  absl::Status status = Live(dial);
  // Groups aborted because the stream ended: that is the cause to tell.
  if (!status.ok() && !failed_here_) status = inbox_.CauseOf(std::move(status));
  cause_ = std::move(status);
  const End end = EndOf(cause_);
  if (link_ != nullptr) Leave(end);
  if (end != End::kShutDown) AbortGroups();
  return end;
}

RankLife::End RankLife::EndOf(const absl::Status& status) const {
  if (status.ok()) return End::kShutDown;
  if (is_refused_) return End::kRefused;
  return absl::IsUnavailable(status) && !failed_here_ ? End::kLostTouch : End::kFailed;
}

absl::Status RankLife::Live(const DialOptions& dial) {
  RETURN_IF_ERROR(Connect(dial));
  ASSIGN_OR_RETURN(const bool joined, Join());
  if (!joined) return absl::OkStatus();
  // Of all ranks or of none: those that are loaded are waited for, too.
  if (options_.preflight && !all_are_loaded_) RETURN_IF_ERROR(Preflight());
  RETURN_IF_ERROR(Load());
  ASSIGN_OR_RETURN(const bool goes_on, Rehearse());
  if (!goes_on) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool started, AllocateCache());
  return started ? Serve() : absl::OkStatus();
}

// Says what must still be said, and ends the threads.
void RankLife::Leave(End end) {
  if (end != End::kShutDown) {
    v1::FromRank message;
    message.mutable_failure()->set_message(std::string(cause_.message()));
    link_->Send(std::move(message));
  }
  reporter_->Finish();
  link_->Finish(kFinishTimeout);
  link_->End();
}

absl::Status RankLife::CheckPeers() {
  if (!rendezvous_.Over()) return absl::OkStatus();
  return absl::UnavailableError("another rank has lost touch with the controller");
}

// Where nobody rejoins, nobody leaves: then idle ranks sleep.
WaitCheck RankLife::PeersCheck() {
  if (!options_.rejoins()) return nullptr;
  return [this] { return CheckPeers(); };
}

void RankLife::AbortGroups() {
  groups_.tp->Abort();
  groups_.pp->Abort();
  model_.device().AbortGroups();
}

// ---- what the link's and the reporter's threads call ----

void RankLife::OnMessage(const v1::ToRank& message) {
  if (absl::Status status = inbox_.Put(message); !status.ok()) {
    inbox_.Fail(status);
    AbortGroups();
  } else if (message.has_shutdown()) {
    reporter_->ExpectEnd(options_.stop_grace);
  }
}

void RankLife::OnClosed(const absl::Status& status) {
  if (!inbox_.shut_down()) {
    inbox_.Fail(status);
    AbortGroups();
  }
  if (!options_.rejoins()) return reporter_->ExpectEnd(options_.stop_grace);
  if (!may_be_late_) reporter_->ExpectEnd(options_.gather_timeout);
}

void RankLife::OnStuck() {
  AbortGroups();
  if (options_.on_stuck == nullptr) return;
  const RankProgress::Snapshot snapshot = progress_.Read();
  options_.on_stuck(absl::UnavailableError(
      absl::StrCat("rank ", options_.rank, " must end but is in: ", snapshot.operation, ", for ",
                   snapshot.operation_age_ms, " ms")));
}

// ---- the protocol, step by step ----

absl::Status RankLife::Connect(const DialOptions& dial) {
  auto link = ControllerLink::Dial(options_.controller_address, options_.dial, dial);
  if (!link.ok()) {
    failed_here_ = CheckPeers().ok();  // the time to dial is over
    return link.status();
  }
  link_ = *std::move(link);
  reporter_ = std::make_unique<Reporter>(*link_, progress_, [this] { OnStuck(); });
  link_->Start(options_.secret,
               {.on_message = [this](const v1::ToRank& message) { OnMessage(message); },
                .on_closed = [this](const absl::Status& status) { OnClosed(status); }});
  return absl::OkStatus();
}

void RankLife::SendHello() {
  v1::FromRank message;
  v1::Hello* hello = message.mutable_hello();
  hello->set_secret(options_.secret);
  hello->set_epoch(epoch_);
  hello->set_replica(options_.replica);
  hello->set_rank(options_.rank);
  hello->set_world_size(options_.grid.world_size());
  hello->set_tensor_parallel(options_.grid.tp());
  hello->set_pipeline_parallel(options_.grid.pp());
  hello->set_host(options_.host);
  hello->set_pid(getpid());
  const RankIdentity identity = model_.Identity();
  hello->set_version(identity.version);
  hello->set_model_fingerprint(identity.model);
  hello->set_tokenizer_fingerprint(identity.tokenizer);
  const BatchLimits& limits = options_.stage.limits;
  hello->mutable_limits()->set_block_size(limits.block_size);
  hello->mutable_limits()->set_max_num_seqs(limits.max_num_seqs);
  hello->mutable_limits()->set_max_batched_tokens(limits.max_batched_tokens);
  hello->mutable_limits()->set_max_model_len(limits.max_model_len);
  v1::Numerics* numerics = hello->mutable_numerics();
  numerics->set_device(identity.device);
  numerics->set_dtype(identity.dtype);
  numerics->set_deterministic(model_.is_deterministic());
  const RankDevice& device = model_.device();
  if (device.gpu()) numerics->set_gpu(device.gpus()[static_cast<size_t>(*device.gpu())].name);
  link_->Send(std::move(message));
}

absl::StatusOr<bool> RankLife::Join() {
  SendHello();
  const auto answer = inbox_.WaitWelcome(PeersCheck());
  is_refused_ = absl::IsFailedPrecondition(answer.status());
  ASSIGN_OR_RETURN(const std::optional<v1::Welcome> welcome, answer);
  if (!welcome.has_value()) return false;
  was_welcomed_ = true;
  const int64_t interval_ms = welcome->heartbeat_interval_ms();
  if (interval_ms < kMinHeartbeatMs || interval_ms > kMaxHeartbeatMs) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat_interval_ms is ", interval_ms,
                                                   ", must be ", kMinHeartbeatMs, " to ",
                                                   kMaxHeartbeatMs));
  }
  reporter_->StartHeartbeats(absl::Milliseconds(interval_ms));
  return true;
}

absl::Status RankLife::Preflight() {
  progress_.Begin(Operation::kPreflight);
  reporter_->BeatNow();
  const DeviceMemory memory = model_.device().backend().Memory();
  RankFacts facts{.host = options_.host,
                  .node = options_.node,
                  .available_bytes = model_.device().backend().AvailableBytes(),
                  .gpu = model_.device().gpu().value_or(kNoGpu),
                  .foreign_bytes = memory.is_limited_by_others() ? memory.foreign_bytes : 0};
  facts.offload_bytes = options_.kv_offload_bytes;
  if (facts.gpu != kNoGpu) facts.host_available_bytes = AvailableMemoryBytes();
  ASSIGN_OR_RETURN(facts.needed_bytes, model_.NeededBytes());
  ASSIGN_OR_RETURN(const std::vector<RankFacts> all,
                   GatherFacts(options_.grid, groups_, facts, preflight_memory_));
  const absl::Status fit = CheckFacts(options_.grid, all, options_.allow_tp_across_nodes);
  failed_here_ = !fit.ok();
  RETURN_IF_ERROR(fit);
  ASSIGN_OR_RETURN(
      const LinkSpeeds speeds,
      MeasureLinks(model_.device().groups(), model_.device().backend(), preflight_memory_));
  preflight_memory_ = {};  // nothing is on its way any more
  SendPreflight(facts, speeds);
  return absl::OkStatus();
}

void RankLife::SendPreflight(const RankFacts& facts, const LinkSpeeds& speeds) {
  const auto put = [](const LinkSpeed& from, v1::LinkSpeed* into) {
    into->set_latency_us(absl::ToDoubleMicroseconds(from.latency));
    into->set_bytes_per_second(from.bytes_per_second);
  };
  v1::FromRank message;
  v1::Preflight* preflight = message.mutable_preflight();
  preflight->set_node(facts.node);
  preflight->set_needed_memory_bytes(facts.needed_bytes);
  preflight->set_available_memory_bytes(facts.available_bytes);
  if (speeds.tp) put(*speeds.tp, preflight->mutable_tensor_parallel());
  if (speeds.next_stage) put(*speeds.next_stage, preflight->mutable_next_stage());
  if (model_.device().gpu().has_value()) PutGpu(model_.device(), preflight->mutable_gpu());
  link_->Send(std::move(message));
}

void RankLife::ReportLoading(int64_t bytes_done, int64_t bytes_total) {
  std::lock_guard lock(loading_mutex_);
  const absl::Time now = SteadyNow();
  if (now - loading_reported_ < kLoadingInterval && bytes_done < bytes_total) return;
  loading_reported_ = now;
  const int64_t percent = bytes_total > 0 ? bytes_done / (bytes_total / 100 + 1) : 100;
  progress_.Begin(Operation::kLoading, static_cast<uint64_t>(percent));
  v1::FromRank message;
  message.mutable_loading()->set_bytes_done(bytes_done);
  message.mutable_loading()->set_bytes_total(bytes_total);
  link_->Send(std::move(message));
}

absl::Status RankLife::Load() {
  const absl::Time begin = SteadyNow();
  may_be_late_ = true;
  // Who heard of the end before, while ranks wait for each other alone, expects ours soon.
  RETURN_IF_ERROR(inbox_.CauseOf(absl::OkStatus()));
  if (model_.is_loaded()) {
    SendLoaded(absl::ZeroDuration());
    return absl::OkStatus();
  }
  progress_.Begin(Operation::kLoading, 0);
  reporter_->BeatNow();
  absl::Status status = model_.Load(
      [this](int64_t bytes_done, int64_t bytes_total) { ReportLoading(bytes_done, bytes_total); });
  failed_here_ = !status.ok();
  if (status.ok()) SendLoaded(SteadyNow() - begin);
  return status;
}

void RankLife::SendLoaded(absl::Duration took) {
  const LoadStats& stats = model_.load_stats();
  v1::FromRank message;
  v1::Loaded* loaded = message.mutable_loaded();
  loaded->set_weight_bytes(stats.weight_bytes);
  loaded->set_loaded_bytes(stats.loaded_bytes);
  loaded->set_shard_bytes(stats.shard_bytes);
  loaded->set_mapped_bytes(stats.mapped_bytes);
  loaded->set_load_ms(absl::ToInt64Milliseconds(took));
  loaded->set_kv_block_bytes(model_.kv_block_bytes());
  loaded->set_max_host_blocks(model_.max_host_blocks());
  if (!model_.MustRehearse()) *loaded->mutable_kv_room() = KvRoom();
  loaded->set_backend(model_.backend_description());
  link_->Send(std::move(message));
}

// If told so.
absl::StatusOr<bool> RankLife::Rehearse() {
  progress_.Begin(Operation::kIdle);
  ASSIGN_OR_RETURN(const std::optional<bool> told, inbox_.WaitRehearse(PeersCheck()));
  if (!told.has_value()) return false;
  if (!*told) return true;
  progress_.Begin(Operation::kRehearsing);
  reporter_->BeatNow();
  RETURN_IF_ERROR(model_.Rehearse());
  SendRehearsed();
  return true;
}

void RankLife::SendRehearsed() {
  v1::FromRank message;
  *message.mutable_rehearsed()->mutable_kv_room() = KvRoom();
  link_->Send(std::move(message));
}

v1::KvRoom RankLife::KvRoom() const {
  v1::KvRoom room;
  room.set_max_kv_blocks(model_.max_kv_blocks());
  room.set_most_kv_blocks(model_.most_kv_blocks());
  room.set_is_asked_for(options_.asks_for_kv_cache());
  const DeviceMemory& memory = model_.memory();
  if (memory.total_bytes == 0) return room;
  const int64_t weight_bytes = model_.load_stats().weight_bytes;
  v1::GpuMemory& told = *room.mutable_memory();
  told.set_total_bytes(memory.total_bytes);
  told.set_budget_bytes(memory.budget_bytes);
  told.set_weight_bytes(weight_bytes);
  told.set_step_bytes(std::max<int64_t>(memory.held_bytes - weight_bytes, 0));
  told.set_other_bytes(memory.other_bytes);
  told.set_foreign_bytes(memory.foreign_bytes);
  told.set_left_bytes(memory.left_bytes);
  told.set_batched_token_bytes(model_.batched_token_bytes());
  return room;
}

absl::StatusOr<bool> RankLife::AllocateCache() {
  progress_.Begin(Operation::kIdle);
  ASSIGN_OR_RETURN(const std::optional<v1::StartServing> start, inbox_.WaitStart(PeersCheck()));
  if (!start.has_value()) return false;
  progress_.Begin(Operation::kAllocatingCache);
  reporter_->BeatNow();
  RETURN_IF_ERROR(model_.AllocateKvCache(start->num_kv_blocks()));
  RETURN_IF_ERROR(model_.AllocateHostBlocks(start->num_host_blocks()));
  v1::FromRank message;
  message.mutable_ready()->set_kv_cache_bytes(model_.num_kv_blocks() * model_.kv_block_bytes());
  link_->Send(std::move(message));
  return true;
}

absl::Status RankLife::Serve() {
  may_be_late_ = false;
  const ModelConfig& config = model_.config();
  const StepLoopOptions loop_options{.limits = options_.stage.limits,
                                     .num_blocks = model_.num_kv_blocks(),
                                     .vocab_size = config.vocab_size,
                                     .eos_token_ids = config.eos_token_ids,
                                     .constraints = model_.constraints()};
  loop_ = std::make_unique<StepLoop>(
      loop_options, model_.Calls(), groups_, progress_,
      [this](engine::StepResult result) { reporter_->Report(std::move(result)); });
  return loop_->Run(inbox_.plans(), PeersCheck());
}

}  // namespace lockstep
