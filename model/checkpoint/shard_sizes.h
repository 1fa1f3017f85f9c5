// How many bytes of weights and of KV cache each rank of a layout holds. Pure arithmetic over
// parallel/partition.h; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "model/model_config.h"
#include "parallel/partition.h"

namespace lockstep {

struct RankShard {
  int rank = 0;
  int stage = 0;
  int tp_rank = 0;
  Range layers;
  int64_t weight_bytes = 0;        // norms are on every tp rank
  int64_t kv_bytes_per_token = 0;  // keys and values of the rank's layers and KV heads
};

// In order of rank, at the checkpoint's dtype, of what each must know of it: a tied embedding,
// which the first and the last stage do, once where these are one. INVALID_ARGUMENT as CheckLayout
// and ProcessGrid::Create.
absl::StatusOr<std::vector<RankShard>> ShardsOfLayout(const ModelConfig& config, int tp, int pp,
                                                      DType kv_dtype);

// The same as ranks hold it, to the byte where a backend does not pad (LoadStats::weight_bytes):
// norms in f32, tables in dtype, as are matrices that are not quantized; keys and values in dtype.
struct HeldWeights {
  DType dtype = DType::kF32;
  Quantization quantization = Quantization::kNone;  // of what the checkpoint has as numbers
  // What the checkpoint has in FP8 stays so where SuitsFp8, as on GPUs (Backend::HoldsFp8).
  bool keeps_float8 = false;
  bool fp8_cache = false;  // keys and values in kE4M3
};
// INVALID_ARGUMENT as ModelConfig::HeldAs, too.
absl::StatusOr<std::vector<RankShard>> HeldShards(const ModelConfig& config, int tp, int pp,
                                                  const HeldWeights& held);

// Of the whole model, each KV head once.
int64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype);

}  // namespace lockstep
