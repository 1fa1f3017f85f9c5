#include "deploy/plan/weight_bytes.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/shard_sizes.h"

namespace lockstep::plan {
namespace {

int64_t Bytes(double bytes) { return static_cast<int64_t>(std::llround(bytes)); }

// Null unless the format is the checkpoint's own.
const StoredQuantization* StoredIn(const Architecture& model, const WeightFormat& format) {
  const bool is_own =
      model.runtime_config && model.runtime_config->stored && format.name == model.stored_weights;
  return is_own ? &*model.runtime_config->stored : nullptr;
}

// By ranks on CPUs or on some GPUs.
std::optional<HeldWeights> HeldSomewhere(const Architecture& model, const WeightFormat& format) {
  if (const auto held = HeldByRuntime(model, format)) return held;
  if (const auto held = HeldOnGpus(model, format, /*multiply_fp8=*/true)) return held;
  return HeldOnGpus(model, format, /*multiply_fp8=*/false);
}

void AddLayer(const Architecture& model, const WeightFormat& format, const Layout& layout,
              int tp_rank, int64_t layer, RankWeights& out) {
  const LayerParameters part = ParametersOfLayer(model, layer);
  const LayerFormat bytes = FormatOfLayer(model, format, layer);
  const double tp = layout.tp;
  const auto num_kv_heads = static_cast<double>(
      model.latent ? 0 : KvHeadsOf(model.sharded_sizes(), layout.tp, tp_rank).size());
  out.layer_bytes +=
      Bytes(bytes.attention * (static_cast<double>(part.attention_sharded) / tp +
                               num_kv_heads * static_cast<double>(part.kv_projection) +
                               static_cast<double>(part.attention_replicated)) +
            bytes.mlp * static_cast<double>(part.mlp_sharded) / tp +
            format.base_bytes * static_cast<double>(part.router + part.norms_and_biases));
  if (part.experts == 0) return;
  const double one =
      static_cast<double>(part.experts) / static_cast<double>(model.experts->num_experts);
  const double held = layout.expert_parallel
                          ? std::ceil(static_cast<double>(model.experts->num_experts) / tp)
                          : static_cast<double>(model.experts->num_experts) / tp;
  out.expert_bytes += Bytes(bytes.mlp * held * one);
}

void AddEdges(const Architecture& model, const WeightFormat& format, const Layout& layout,
              int tp_rank, RankWeights& out) {
  const bool is_first = out.stage == 0;
  const bool is_last = out.stage == layout.pp - 1;
  const int64_t rows = VocabOf(model.sharded_sizes(), layout.tp, tp_rank).size();
  const int64_t table = Bytes(static_cast<double>(rows * model.hidden_size) * format.base_bytes);
  if (is_first) out.embedding_bytes = table;
  // Ranks of `serve` that need both hold a tied table twice.
  const bool shares =
      is_first && is_last && model.tie_word_embeddings && !HeldSomewhere(model, format);
  if (is_last && !shares) out.lm_head_bytes = table;
  const bool is_quantized = format.name == "int8" || format.name == "int4";
  if (is_last && is_quantized && HeldByRuntime(model, format)) {
    out.lm_head_bytes = QuantizedBytes(Quantization::kInt8, rows, model.hidden_size, 1);
  }
  if (is_last) out.layer_bytes += Bytes(static_cast<double>(model.hidden_size) * format.base_bytes);
}

// The runtime's own numbers decide; the parts above only say where they sit.
void MatchRuntime(const Architecture& model, HeldWeights held, const Layout& layout,
                  std::vector<RankWeights>& ranks) {
  // What a checkpoint in integers has as numbers stays so, nothing being asked for.
  const auto& stored = model.runtime_config->stored;
  if (stored && stored->native() != Quantization::kNone) held.quantization = Quantization::kNone;
  const auto shards = HeldShards(*model.runtime_config, layout.tp, layout.pp, held);
  LS_CHECK(shards.ok()) << shards.status().message();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].layer_bytes += (*shards)[rank].weight_bytes - ranks[rank].total();
  }
}

}  // namespace

LayerFormat FormatOfLayer(const Architecture& model, const WeightFormat& format, int64_t layer) {
  bool spares_attention = format.only_mlp;
  bool spares_mlp = format.only_mlp && (layer == 0 || layer == model.num_layers - 1);
  if (const StoredQuantization* stored = StoredIn(model, format); stored != nullptr) {
    spares_attention = HasAll(stored->spared.Of(layer), kAttentionMatrices);
    spares_mlp = HasAll(stored->spared.Of(layer), kMlpMatrices);
  }
  return {.attention = spares_attention ? format.base_bytes : format.linear_bytes,
          .mlp = spares_mlp ? format.base_bytes : format.linear_bytes};
}

std::optional<HeldWeights> HeldByRuntime(const Architecture& model, const WeightFormat& format) {
  if (!model.runtime_config) return std::nullopt;
  if (const auto& stored = model.runtime_config->stored; stored.has_value()) {
    // Taken as they are, or turned into numbers and back: only the former is planned exactly.
    const bool as_it_is = stored->native() != Quantization::kNone &&
                          QuantizationName(stored->native()) == format.name;
    if (!as_it_is) return std::nullopt;
  }
  if (format.name == "f32") return HeldWeights{DType::kF32, Quantization::kNone};
  if (format.name == "bf16") return HeldWeights{DType::kBF16, Quantization::kNone};
  const DType dtype = model.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
  if (format.name == "int8") return HeldWeights{dtype, Quantization::kInt8};
  if (format.name == "int4") return HeldWeights{dtype, Quantization::kInt4};
  return std::nullopt;
}

std::optional<HeldWeights> HeldOnGpus(const Architecture& model, const WeightFormat& format,
                                      bool multiply_fp8) {
  if (!model.runtime_config) return std::nullopt;
  const auto& stored = model.runtime_config->stored;
  if (stored && stored->native() != Quantization::kNone) return std::nullopt;  // integers stay so
  // Beside fp8 nothing is in f32.
  const DType dtype = model.dtype == DType::kF32 ? DType::kBF16 : model.dtype;
  const bool keeps_float8 = stored && stored->is_float8() && multiply_fp8;
  if (keeps_float8 && StoredIn(model, format) != nullptr) {
    return HeldWeights{dtype, Quantization::kNone, keeps_float8};
  }
  if (format.name == "fp8" && multiply_fp8) {
    return HeldWeights{dtype, Quantization::kFp8, keeps_float8};
  }
  if (keeps_float8) return std::nullopt;
  if (format.name == "f32") return HeldWeights{DType::kF32};
  if (format.name == "bf16") return HeldWeights{DType::kBF16};
  return std::nullopt;
}

absl::Status CheckModelLayout(const Architecture& model, const Layout& layout) {
  RETURN_IF_ERROR(CheckLayout(model.sharded_sizes(), layout.tp, layout.pp));
  if (!model.experts) return absl::OkStatus();
  const Experts& experts = *model.experts;
  if (layout.expert_parallel && experts.num_experts % layout.tp != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp ", layout.tp, " does not divide the ", experts.num_experts, " experts"));
  }
  if (!layout.expert_parallel && experts.intermediate_size % layout.tp != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tp ", layout.tp,
                                                   " does not divide an expert's intermediate ",
                                                   "size ", experts.intermediate_size));
  }
  if (experts.first_layer > 0 && model.intermediate_size % layout.tp != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tp ", layout.tp, " does not divide intermediate_size ", model.intermediate_size));
  }
  return absl::OkStatus();
}

std::vector<RankWeights> WeightsOfRanks(const Architecture& model, const WeightFormat& format,
                                        const Layout& layout) {
  const std::vector<Range> layers = LayersOfStages(model.sharded_sizes(), layout.pp);
  std::vector<RankWeights> ranks;
  for (int stage = 0; stage < layout.pp; ++stage) {
    for (int tp_rank = 0; tp_rank < layout.tp; ++tp_rank) {
      RankWeights& rank = ranks.emplace_back();
      rank.stage = stage;
      rank.layers = layers[stage];
      for (int64_t layer = rank.layers.begin; layer < rank.layers.end; ++layer) {
        AddLayer(model, format, layout, tp_rank, layer, rank);
      }
      AddEdges(model, format, layout, tp_rank, rank);
    }
  }
  if (const auto held = HeldSomewhere(model, format)) MatchRuntime(model, *held, layout, ranks);
  return ranks;
}

double TotalWeightBytes(const Architecture& model, const WeightFormat& format) {
  double total = 0.0;
  for (const RankWeights& rank : WeightsOfRanks(model, format, {})) {
    total += static_cast<double>(rank.total());
  }
  return total;
}

}  // namespace lockstep::plan
