#include "runtime/worker/rank_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/tokenizer/tokenizer_fingerprint.h"
#include "runtime/engine/spare_memory.h"

namespace lockstep {
namespace {

constexpr int64_t kUsualCacheBytes = int64_t{1} << 30;  // at most, in the host's memory

// A cache that nobody asked for holds no more than all sequences can fill.
int64_t UsualCacheBytes(const BatchLimits& limits, int64_t block_bytes) {
  const int64_t most_blocks = limits.max_num_seqs * limits.max_blocks_per_seq();
  return std::min(kUsualCacheBytes / block_bytes, most_blocks) * block_bytes;
}

// Blocks of this rank's cache: those asked for, or those that fit, which may be none on a GPU.
// RESOURCE_EXHAUSTED when what was asked for does not fit.
absl::StatusOr<int64_t> MaxKvBlocks(const WorkerOptions& options, bool on_gpu, int64_t block_bytes,
                                    int64_t available) {
  if (options.num_kv_blocks.has_value()) {
    if (*options.num_kv_blocks > available / block_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          *options.num_kv_blocks, " KV blocks of ", block_bytes, " bytes need more than the ",
          available, " bytes of memory available: lower --num-kv-blocks to ",
          available / block_bytes));
    }
    return *options.num_kv_blocks;
  }
  if (on_gpu && !options.kv_cache_bytes.has_value()) return available / block_bytes;
  const int64_t cache_bytes =
      options.kv_cache_bytes.value_or(UsualCacheBytes(options.stage.limits, block_bytes));
  if (cache_bytes < block_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a KV cache of ", cache_bytes,
                                                     " bytes holds no block of ", block_bytes,
                                                     " bytes: raise --kv-cache-gib"));
  }
  if (cache_bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a KV cache of ", cache_bytes, " bytes exceeds the ", available,
        " bytes of memory available: ",
        options.kv_cache_bytes.has_value() ? "lower" : "set a smaller one by", " --kv-cache-gib"));
  }
  return cache_bytes / block_bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankModel>> RankModel::Open(const WorkerOptions& options,
                                                           RankProgress& progress) {
  std::unique_ptr<RankModel> model(new RankModel(options, progress));
  ASSIGN_OR_RETURN(model->checkpoint_, Checkpoint::Open(options.model));
  ASSIGN_OR_RETURN(model->fingerprint_, model->checkpoint_->Fingerprint(options.stage.quantize));
  ASSIGN_OR_RETURN(model->tokenizer_fingerprint_, TokenizerFingerprint(options.model));
  ASSIGN_OR_RETURN(const DType compute, AttentionDType(*model->checkpoint_, options.stage.weights,
                                                       /*holds_f16=*/true));
  ASSIGN_OR_RETURN(model->device_, RankDevice::Open(options.device, compute, options.on_notice));
  ASSIGN_OR_RETURN(model->kv_dtype_,
                   KvCacheDType(*model->checkpoint_, options.stage.weights, options.stage.kv_cache,
                                model->device_->backend().HoldsF16()));
  return model;
}

RankIdentity RankModel::Identity() const {
  const Backend& backend = device_->backend();
  const bool on_gpu = device_->gpu().has_value();
  const std::string held(
      DTypeName(HeldDType(options_.stage.weights, config().dtype, backend.HoldsF16())));
  const std::string cached(DTypeName(kv_dtype_));
  const BatchLimits& limits = options_.stage.limits;
  RankIdentity identity = {.host = options_.host,
                           .is_loaded = is_loaded(),
                           .version = options_.version,
                           .model = fingerprint_,
                           .tokenizer = tokenizer_fingerprint_,
                           .device = on_gpu ? "cuda" : "cpu",
                           .dtype = held == cached ? held : absl::StrCat(held, " and ", cached),
                           .deterministic = is_deterministic() ? "on" : "off",
                           .block_size = absl::StrCat(limits.block_size),
                           .max_num_seqs = absl::StrCat(limits.max_num_seqs),
                           .max_batched_tokens = absl::StrCat(limits.max_batched_tokens),
                           .max_model_len = absl::StrCat(limits.max_model_len),
                           .fp8_weights = "none"};
  if (config().stored.has_value() && config().stored->is_float8()) {
    identity.fp8_weights =
        backend.HoldsFp8(config().hidden_size, config().hidden_size) ? "as stored" : "as numbers";
  }
  return identity;
}

// As LlamaStage will hold them, of the memory that they are compared with: a GPU's, or the host's
// where there is none. Pinned memory, of results, steps and loading (PinnedSlots, 64 MiB at most
// and gone with it), is the host's of a rank with a GPU, so that counting it would refuse what
// fits; a CPU's rank has none.
absl::StatusOr<int64_t> RankModel::NeededBytes() const {
  const ModelConfig& config = checkpoint_->config();
  const DType held = HeldDType(options_.stage.weights, config.dtype, device_->backend().HoldsF16());
  const bool keeps_float8 = device_->backend().HoldsFp8(config.hidden_size, config.hidden_size);
  ASSIGN_OR_RETURN(const std::vector<RankShard> shards,
                   HeldShards(config, options_.grid.tp(), options_.grid.pp(),
                              {held, options_.stage.quantize, keeps_float8,
                               options_.stage.kv_cache == KvDType::kFp8}));
  const RankShard& mine = shards[static_cast<size_t>(options_.rank)];
  ASSIGN_OR_RETURN(
      const int64_t weight_bytes,
      LlamaStage::WeightBytesToCome(*checkpoint_, options_.grid, options_.rank, device_->backend(),
                                    options_.stage, is_loaded() ? 0 : mine.weight_bytes));
  const BatchLimits& limits = options_.stage.limits;
  const int64_t block_bytes = mine.kv_bytes_per_token * limits.block_size;
  const bool on_gpu = device_->gpu().has_value();
  const int64_t other_bytes = weight_bytes + (on_gpu ? 0 : options_.kv_offload_bytes);
  if (!options_.num_kv_blocks.has_value()) {
    if (on_gpu && !options_.kv_cache_bytes.has_value()) return other_bytes;
    return other_bytes + options_.kv_cache_bytes.value_or(UsualCacheBytes(limits, block_bytes));
  }
  return other_bytes + *options_.num_kv_blocks * block_bytes;
}

absl::Status RankModel::Join(RankGroups& host) {
  is_warm_ = has_rehearsed_ = false;  // steps are kept for groups
  const BatchLimits& limits = options_.stage.limits;
  return device_->Join(host, {.max_hidden_states = limits.max_batched_tokens * config().hidden_size,
                              .bytes_back = TokenReturn::MessageBytes(limits.max_num_seqs)});
}

// Where it can.
absl::Status RankModel::LetDeviceChoose(const LlamaStage& stage) {
  Backend& backend = device_->backend();
  RankGroups& groups = device_->groups();
  if (!backend.SummarizesLogits()) return absl::OkStatus();
  const auto health = [&groups]() -> absl::Status {
    RETURN_IF_ERROR(groups.tp->Health());
    return groups.pp->Health();
  };
  if (stage.is_last()) {
    const BatchLimits& limits = options_.stage.limits;
    const int64_t max_rows = DeviceChooser::MaxRows(limits.max_batched_tokens, limits.max_num_seqs);
    ASSIGN_OR_RETURN(device_logits_, DeviceChooser::Create(backend, config().vocab_size, *groups.tp,
                                                           max_rows, {.health = health}));
  }
  const bool is_end_of_several = stage.is_first() != stage.is_last();
  if (!is_end_of_several) return absl::OkStatus();
  ASSIGN_OR_RETURN(token_return_,
                   TokenReturn::Create(backend, *groups.pp, options_.stage.limits.max_num_seqs));
  return absl::OkStatus();
}

// Beside the weights, and on where they are there first.
void RankModel::ReadVocabulary() {
  const ProcessGrid& grid = options_.grid;
  if (grid.stage_of(options_.rank) != grid.pp() - 1) return;
  ShardedSizes sizes;
  sizes.vocab_size = config().vocab_size;
  const Range part = VocabOf(sizes, grid.tp(), grid.tp_rank_of(options_.rank));
  vocabulary_ = std::make_unique<RankVocabulary>(options_.model, config().vocab_size, part,
                                                 config().eos_token_ids);
  constraints_ = std::make_unique<grammar::ConstraintCache>(
      [vocabulary = vocabulary_.get()] { return vocabulary->Get(); });
}

absl::Status RankModel::Load(const LoadProgress& progress) {
  ReadVocabulary();
  StageOptions stage_options = options_.stage;
  stage_options.on_progress = [this] { progress_.Advance(); };
  stage_options.on_waiting = [this] { progress_.Begin(Operation::kWaitingForPacking); };
  ASSIGN_OR_RETURN(std::unique_ptr<LlamaStage> stage,
                   LlamaStage::Load(*checkpoint_, options_.grid, options_.rank, device_->backend(),
                                    device_->groups(), stage_options, progress));
  RETURN_IF_ERROR(LetDeviceChoose(*stage));
  stage_ = std::move(stage);
  if (options_.kv_offload_bytes > 0 && max_host_blocks() == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.kv_offload_bytes, " bytes of the host's memory hold no copy of a KV ",
                     "block of ", kv_block_bytes(), " bytes: raise --kv-offload-gib"));
  }
  if (device_->backend().KeepsSteps()) return absl::OkStatus();
  return SizeKvCache(device_->backend().AvailableBytes());
}

absl::Status RankModel::SizeKvCache(int64_t available_bytes) {
  const bool on_gpu = device_->gpu().has_value();
  const int64_t most = std::max<int64_t>(available_bytes, 0);
  const int64_t spare = on_gpu && !options_.asks_for_kv_cache() ? SpareBytes(most) : 0;
  ASSIGN_OR_RETURN(most_kv_blocks_, MaxKvBlocks(options_, on_gpu, kv_block_bytes(), most));
  ASSIGN_OR_RETURN(max_kv_blocks_, MaxKvBlocks(options_, on_gpu, kv_block_bytes(), most - spare));
  knows_kv_room_ = true;
  return absl::OkStatus();
}

// Over a cache for the steps alone, whose memory is available again afterwards.
absl::Status RankModel::Rehearse() {
  if (!device_->backend().KeepsSteps()) return absl::OkStatus();
  is_warm_ = false;
  num_kv_blocks_ = 0;
  const int64_t num_blocks = stage_->num_warm_up_blocks();
  RETURN_IF_ERROR(stage_->AllocateKvCache(num_blocks));
  RETURN_IF_ERROR(stage_->WarmUp());
  has_rehearsed_ = true;
  memory_ = device_->backend().Memory();
  memory_.held_bytes -= num_blocks * kv_block_bytes();
  memory_.left_bytes += num_blocks * kv_block_bytes();
  return SizeKvCache(memory_.left_bytes);
}

absl::Status RankModel::AllocateKvCache(int64_t num_blocks) {
  if (num_blocks < 1 || num_blocks > most_kv_blocks_) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_kv_blocks is ", num_blocks, ", must be 1 to ", most_kv_blocks_));
  }
  if (num_blocks != num_kv_blocks_) {
    RETURN_IF_ERROR(stage_->AllocateKvCache(num_blocks));
    num_kv_blocks_ = num_blocks;
    is_warm_ = false;
  }
  if (is_warm_) return absl::OkStatus();
  RETURN_IF_ERROR(has_rehearsed_ ? stage_->KeepSteps() : stage_->WarmUp());
  is_warm_ = true;
  return absl::OkStatus();
}

int64_t RankModel::max_host_blocks() const {
  constexpr int64_t kMost = int64_t{1} << 30;  // that the controller takes
  return std::min(options_.kv_offload_bytes / kv_block_bytes(), kMost);
}

absl::Status RankModel::AllocateHostBlocks(int64_t num_blocks) {
  if (num_blocks < 0 || num_blocks > max_host_blocks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_host_blocks is ", num_blocks, ", must be 0 to ", max_host_blocks()));
  }
  if (num_blocks == stage_->num_host_blocks()) return absl::OkStatus();
  return stage_->AllocateHostBlocks(num_blocks, [this] { progress_.Advance(); });
}

// Null where nobody has any.
const ChosenToken* RankModel::ChosenLast() const {
  if (token_return_ != nullptr) return token_return_->table();
  return device_logits_ != nullptr ? device_logits_->chosen_on_device() : nullptr;
}

StageCalls RankModel::Calls() {
  StageCalls calls = {
      .forward = [this](const StepBatch& batch) { return stage_->Forward(batch, ChosenLast()); },
      .copy_blocks = [this](const StepBlocks& blocks) { return stage_->CopyBlocks(blocks); },
      .logits = [this](int64_t first, int64_t count) { return stage_->Logits(first, count); },
      .max_logits_rows = LlamaStage::kMaxLogitsRows,
      .device_logits = device_logits_.get(),
      .token_return = token_return_.get()};
  if (device_logits_ == nullptr) return calls;
  calls.logits = [this](int64_t first, int64_t count) {
    return stage_->LogitsOnDevice(first, count);
  };
  calls.max_logits_rows = stage_->max_device_logits_rows();
  return calls;
}

}  // namespace lockstep
