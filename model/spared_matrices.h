// Which matrices of a quantized checkpoint are left as numbers, layer by layer: as its config.json
// lists them, or, once its files are open, as they lie there (Checkpoint). What is loaded, what
// ranks will hold and what is planned follow this one table. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// Of a layer, in the order of LlamaLayerTensors.
enum class LayerMatrix : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
inline constexpr std::array kLayerMatrices = {
    LayerMatrix::kQ,    LayerMatrix::kK,  LayerMatrix::kV,   LayerMatrix::kO,
    LayerMatrix::kGate, LayerMatrix::kUp, LayerMatrix::kDown};

// "model.layers.3.mlp.up_proj": its tensor's name, but for ".weight".
std::string LayerMatrixName(int64_t layer, LayerMatrix matrix);
// Several of a layer: a bit to each.
using LayerMatrixSet = uint8_t;
constexpr LayerMatrixSet SetOf(std::initializer_list<LayerMatrix> matrices) {
  unsigned set = 0;
  for (const LayerMatrix matrix : matrices) set |= 1u << static_cast<unsigned>(matrix);
  return static_cast<LayerMatrixSet>(set);
}
inline constexpr LayerMatrixSet kAttentionMatrices =
    SetOf({LayerMatrix::kQ, LayerMatrix::kK, LayerMatrix::kV, LayerMatrix::kO});
inline constexpr LayerMatrixSet kMlpMatrices =
    SetOf({LayerMatrix::kGate, LayerMatrix::kUp, LayerMatrix::kDown});
constexpr bool HasAll(LayerMatrixSet set, LayerMatrixSet wanted) {
  return (set & wanted) == wanted;
}

class SparedMatrices {
 public:
  SparedMatrices() = default;  // none
  // By the names of modules that are not converted: a matrix is spared whose whole name is listed,
  // or the last part of it, or a module that it lies in, by one or more parts of its name
  // ("model.layers.3.self_attn", "self_attn"). Source: _replace_with_fbgemm_fp8_linear of
  // transformers (integrations/fbgemm_fp8.py). Patterns ("re:...") are no names of modules: what
  // they spare, only the files tell.
  SparedMatrices(std::span<const std::string> modules, int64_t num_layers);

  void Add(int64_t layer, LayerMatrix matrix);
  LayerMatrixSet Of(int64_t layer) const {
    return layer < std::ssize(layers_) ? layers_[static_cast<size_t>(layer)] : LayerMatrixSet{0};
  }

 private:
  std::vector<LayerMatrixSet> layers_;  // none of those beyond
};

}  // namespace lockstep
