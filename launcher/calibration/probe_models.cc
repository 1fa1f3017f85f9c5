#include "launcher/calibration/probe_models.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/checkpoint/model_shapes.h"
#include "model/checkpoint/model_writer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Of CPUs, 120 MB a layer: together far more than caches hold. Of GPUs, 436 MB a layer, beside
// which an L2 cache of 50 MB is little even for one of eight ranks, and caches of 4.3 GB read in a
// millisecond.
constexpr ProbeSizes kSizes[] = {
    {.name = "cpu",
     .shape = "llama-3.2-1b",
     .num_layers = 4,
     .num_layers_quick = 2,
     .num_overhead_layers = 16,
     .vocab_size = 4096,
     .max_tokens = 128,
     .tokens_factor = 2,
     .most_decodes = 128,
     .long_context = 4096,
     .long_seqs = 4,
     .most_reduced_bytes = 0,
     .served_tokens = 128},
    {.name = "cuda",
     .shape = "llama-3.1-8b",
     .num_layers = 4,
     .num_layers_quick = 2,
     .num_overhead_layers = 16,
     .vocab_size = 4096,
     .max_tokens = 2048,
     .tokens_factor = 2,
     .most_decodes = 128,
     .long_context = 8192,
     .long_seqs = 32,
     .most_reduced_bytes = int64_t{64} << 20,
     .served_tokens = 128},
    {.name = "small",
     .shape = "tiny",
     .num_layers = 1,
     .num_layers_quick = 1,
     .num_overhead_layers = 1,
     .vocab_size = 256,
     .max_tokens = 64,
     .tokens_factor = 8,
     .most_decodes = 2,
     .long_context = 256,
     .long_seqs = 2,
     .most_reduced_bytes = 64 << 10,
     .served_tokens = 4},
};

constexpr ProbeFormat kHostFormats[] = {{"bf16", DType::kBF16, Quantization::kNone},
                                        {"f32", DType::kF32, Quantization::kNone},
                                        {"int8", DType::kBF16, Quantization::kInt8},
                                        {"int4", DType::kBF16, Quantization::kInt4}};
constexpr ProbeFormat kGpuFormats[] = {{"bf16", DType::kBF16, Quantization::kNone},
                                       {"fp8", DType::kBF16, Quantization::kFp8}};

ModelConfig LayersConfig(const ProbeSizes& sizes, bool quick) {
  ModelConfig config = *BuiltInShape(sizes.shape);
  config.num_layers = quick ? sizes.num_layers_quick : sizes.num_layers;
  config.vocab_size = sizes.vocab_size;
  config.max_position_embeddings = sizes.long_context;
  config.rope_scaling.reset();
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return config;
}

// What remains beside its matrices is what every layer takes.
ModelConfig OverheadConfig(const ProbeSizes& sizes) {
  ModelConfig config = *BuiltInShape("tiny");
  config.hidden_size = 128;
  config.intermediate_size = 256;
  config.num_layers = sizes.num_overhead_layers;
  config.num_heads = 8;
  config.num_kv_heads = 8;
  config.head_dim = 16;
  config.vocab_size = 1024;
  config.max_position_embeddings = 4096;
  config.bos_token_id.reset();
  config.eos_token_ids.clear();
  return config;
}

absl::StatusOr<fs::path> Synthesize(const fs::path& directory, const std::string& name,
                                    const ModelConfig& config) {
  const fs::path shape = directory / absl::StrCat(name, ".json");
  RETURN_IF_ERROR(WriteTextFile(shape, ModelConfigJson(config)));
  SynthesizeOptions options;
  options.shape = shape.string();
  options.output = directory / name;
  options.dtype = DType::kBF16;
  RETURN_IF_ERROR(SynthesizeModel(options).status());
  return options.output;
}

}  // namespace

absl::StatusOr<ProbeSizes> FindProbeSizes(const std::string& name) {
  for (const ProbeSizes& sizes : kSizes) {
    if (name == sizes.name) return sizes;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("sizes ", name, " are unknown: cpu, cuda or small"));
}

std::span<const ProbeFormat> ProbeFormatsOf(bool on_gpus) {
  return on_gpus ? std::span<const ProbeFormat>(kGpuFormats) : kHostFormats;
}

absl::StatusOr<ProbeModels> MakeProbeModels(const fs::path& directory, const ProbeSizes& sizes,
                                            bool quick) {
  ProbeModels models;
  ASSIGN_OR_RETURN(models.layers, Synthesize(directory, "layers", LayersConfig(sizes, quick)));
  ASSIGN_OR_RETURN(models.overhead, Synthesize(directory, "overhead", OverheadConfig(sizes)));
  return models;
}

}  // namespace lockstep
