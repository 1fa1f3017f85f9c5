// The tensors a checkpoint of a Llama, or of a family that shares its layers, holds under Hugging
// Face's names, with their shapes. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/model_config.h"

namespace lockstep {

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;  // [rows, columns], row-major; norms and biases [size]
};

// Embedding first, then layer by layer, final norm, and the LM head unless it is tied. Matrices are
// [outputs, inputs].
std::vector<TensorSpec> LlamaTensors(const ModelConfig& config);
// Those of one layer, without the embedding, final norm and head.
std::vector<TensorSpec> LlamaLayerTensors(const ModelConfig& config, int64_t layer);

// Every tensor the architecture needs is there with the right shape and a dtype that can be loaded.
// INVALID_ARGUMENT naming the first that is not, or one of a layer beyond config.json's: without
// its layers a model would answer, but wrongly. Other extra tensors are tolerated.
absl::Status CheckLlamaTensors(const Checkpoint& checkpoint);

// Names that LlamaTensors does not list, sorted; without those known to be harmless: old
// checkpoints' rotary_emb.inv_freq, and a tied lm_head.weight, but for one that differs from the
// embedding (some rows of both are read).
std::vector<std::string> UnknownTensors(const Checkpoint& checkpoint);
// One of them for people: quoted, with what is to be said of it.
std::string UnknownTensorText(const std::string& name);

}  // namespace lockstep
