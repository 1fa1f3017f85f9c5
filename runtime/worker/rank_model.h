// What a rank keeps from one epoch to the next: the opened checkpoint, its weights, its KV cache.
//
// Used by the busy thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/llama_stage.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/token_return.h"
#include "runtime/worker/rank_device.h"
#include "runtime/worker/rank_identity.h"
#include "runtime/worker/rank_progress.h"
#include "runtime/worker/rank_vocabulary.h"
#include "runtime/worker/step_loop.h"
#include "runtime/worker/worker.h"

namespace lockstep {

class RankModel {
 public:
  // Looks at the checkpoint and starts the device; reads no weights. All must outlive the model;
  // progress advances with every layer.
  static absl::StatusOr<std::unique_ptr<RankModel>> Open(const WorkerOptions& options,
                                                         RankProgress& progress);

  const ModelConfig& config() const { return checkpoint_->config(); }
  const std::string& fingerprint() const { return fingerprint_; }  // Checkpoint::Fingerprint

  // What ranks must have in common with this one.
  RankIdentity Identity() const;

  // Memory still to be taken for weights and KV cache of this rank, before there is a cache.
  // INVALID_ARGUMENT as CheckLayout.
  absl::StatusOr<int64_t> NeededBytes() const;

  RankDevice& device() { return *device_; }
  // CPUs always are.
  bool is_deterministic() const {
    return !device_->gpu().has_value() || options_.device.deterministic;
  }
  // RankDevice::Join, with what the model's stages send each other.
  absl::Status Join(RankGroups& host);

  // Reads this rank's weights; the device's groups must have been joined; progress is called from
  // several threads. Errors as LlamaStage::Load's, and RESOURCE_EXHAUSTED when the cache asked for
  // does not fit, as far as that is known.
  absl::Status Load(const LoadProgress& progress);
  bool is_loaded() const { return stage_ != nullptr; }
  // Whether the memory that is left for the cache is still unknown.
  bool MustRehearse() const { return !knows_kv_room_; }
  // Runs and keeps steps of all sizes, with all ranks, and measures what they leave. The cache is
  // gone afterwards. Errors as LlamaStage::WarmUp's, and RESOURCE_EXHAUSTED as Load's.
  absl::Status Rehearse();
  // As measured then, without the cache; of the weights, held_bytes has all.
  const DeviceMemory& memory() const { return memory_; }
  int64_t batched_token_bytes() const { return stage_->batched_token_bytes(); }

  // Of a loaded model.
  const LoadStats& load_stats() const { return stage_->load_stats(); }
  std::string backend_description() const { return device_->backend().Description(); }
  int64_t kv_block_bytes() const { return stage_->kv_block_bytes(); }
  // That fit with some memory to spare (runtime/engine/spare_memory.h), and with none; unless
  // MustRehearse.
  int64_t max_kv_blocks() const { return max_kv_blocks_; }
  int64_t most_kv_blocks() const { return most_kv_blocks_; }
  // Does nothing when there are so many already: what is in them, nobody will read before writing.
  // INVALID_ARGUMENT outside [1, most_kv_blocks()].
  absl::Status AllocateKvCache(int64_t num_blocks);
  int64_t num_kv_blocks() const { return num_kv_blocks_; }
  // Of a loaded model: copies of blocks that the host's memory is to have room for.
  int64_t max_host_blocks() const;
  // Likewise. INVALID_ARGUMENT outside [0, max_host_blocks()]; as HostKvBlocks::Allocate.
  absl::Status AllocateHostBlocks(int64_t num_blocks);
  StageCalls Calls();
  // Of the last stage's outputs; null on others. Lives as long as the model.
  grammar::ConstraintCache* constraints() const { return constraints_.get(); }

 private:
  const ChosenToken* ChosenLast() const;
  void ReadVocabulary();
  absl::Status LetDeviceChoose(const LlamaStage& stage);
  absl::Status SizeKvCache(int64_t available_bytes);

  RankModel(const WorkerOptions& options, RankProgress& progress)
      : options_(options), progress_(progress) {}

  const WorkerOptions& options_;
  RankProgress& progress_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::string fingerprint_;
  std::string tokenizer_fingerprint_;
  std::unique_ptr<RankDevice> device_;
  DType kv_dtype_ = DType::kF32;
  std::unique_ptr<LlamaStage> stage_;
  std::unique_ptr<RankVocabulary> vocabulary_;  // this and the next: of the last stage
  std::unique_ptr<grammar::ConstraintCache> constraints_;
  std::unique_ptr<DeviceChooser> device_logits_;  // null: logits come to the host
  std::unique_ptr<TokenReturn> token_return_;     // null: tokens do, or there is one stage
  bool knows_kv_room_ = false;
  int64_t max_kv_blocks_ = 0;
  int64_t most_kv_blocks_ = 0;
  int64_t num_kv_blocks_ = 0;
  DeviceMemory memory_;
  // With the groups joined last: the stage has run steps of all sizes; and those that repeat are
  // kept for the cache that there is.
  bool has_rehearsed_ = false;
  bool is_warm_ = false;
};

}  // namespace lockstep
