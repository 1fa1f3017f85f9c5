#include "model/spared_matrices.h"

#include <algorithm>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace lockstep {
namespace {

constexpr std::array<const char*, kLayerMatrices.size()> kNamesInLayer = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

using Modules = absl::flat_hash_set<std::string_view>;

// Runs of the name's parts, of which one that ends with the last is all of them or that one alone.
bool IsSpared(const Modules& modules, const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  if (modules.contains(name) || modules.contains(parts.back())) return true;
  for (auto begin = parts.begin(); begin != parts.end() - 1; ++begin) {
    for (auto end = begin + 1; end != parts.end(); ++end) {
      if (modules.contains(absl::StrJoin(begin, end, "."))) return true;
    }
  }
  return false;
}

}  // namespace

std::string LayerMatrixName(int64_t layer, LayerMatrix matrix) {
  return absl::StrCat("model.layers.", layer, ".", kNamesInLayer[static_cast<size_t>(matrix)]);
}

SparedMatrices::SparedMatrices(std::span<const std::string> modules, int64_t num_layers) {
  if (modules.empty()) return;
  const Modules listed(modules.begin(), modules.end());
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    for (const LayerMatrix matrix : kLayerMatrices) {
      if (IsSpared(listed, LayerMatrixName(layer, matrix))) Add(layer, matrix);
    }
  }
}

void SparedMatrices::Add(int64_t layer, LayerMatrix matrix) {
  const auto index = static_cast<size_t>(layer);
  layers_.resize(std::max(layers_.size(), index + 1));
  layers_[index] |= SetOf({matrix});
}

}  // namespace lockstep
