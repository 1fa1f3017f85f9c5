#include "deploy/plan/held_by_serve.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/plan/weight_bytes.h"
#include "kernels/cuda/attention_heads.h"
#include "model/model_family.h"

namespace lockstep::plan {
namespace {

// How it keeps the cache beside such weights, unasked.
const char* KvFormatBeside(const WeightFormat& weights) {
  return weights.name == "f32" ? "f32" : "bf16";
}

// What is to be done where the checkpoint's own format is not kept.
std::string AsNumbers(const PlanRequest& request) {
  const Architecture& model = request.model.architecture;
  const bool is_own = model.stored_weights == request.weights.name;
  const bool takes_numbers =
      HeldOnGpus(model, *FindWeightFormat("bf16"), request.gpu.Multiplies(Operands::kFp8))
          .has_value();
  return is_own && takes_numbers ? ": there they become numbers (--weights bf16)" : "";
}

// Of a model that it loads.
std::string WhyNotInFormat(const PlanRequest& request) {
  const Architecture& model = request.model.architecture;
  const std::string& format = request.weights.name;
  const bool multiplies_fp8 = request.gpu.Multiplies(Operands::kFp8);
  if (!multiplies_fp8 && HeldOnGpus(model, request.weights, /*multiply_fp8=*/true)) {
    return absl::StrCat("holds fp8 weights on GPUs of compute capability 8.9 or later only; ",
                        request.gpu.title, " cannot multiply them", AsNumbers(request));
  }
  if (multiplies_fp8 && model.runtime_config->stored && model.runtime_config->stored->is_float8()) {
    return absl::StrCat("keeps this checkpoint as it is stored (", model.stored_weights,
                        ") where GPUs multiply fp8, not in ", format);
  }
  if (request.weights.only_mlp && model.stored_weights.empty()) {
    return absl::StrCat("takes ", format, " from checkpoints that are stored so (name one's ",
                        "config.json); it makes none");
  }
  return absl::StrCat("does not hold weights in ", format, " on GPUs",
                      model.stored_weights.empty() ? "" : ", of this checkpoint",
                      AsNumbers(request));
}

std::string WhyNoSuchWeights(const PlanRequest& request) {
  const Architecture& model = request.model.architecture;
  if (!model.runtime_config) {
    return TraitsOfType(model.model_type) != nullptr
               ? absl::StrCat("does not load this checkpoint: ", model.runtime_refusal)
               : absl::StrCat("does not serve this kind of model (", model.model_type, ")");
  }
  const bool multiplies_fp8 = request.gpu.Multiplies(Operands::kFp8);
  return HeldOnGpus(model, request.weights, multiplies_fp8) ? "" : WhyNotInFormat(request);
}

std::string WhyNoSuchKvCache(const PlanRequest& request) {
  const std::string unasked = KvFormatBeside(request.weights);
  const bool is_fp8 = request.kv.name == "fp8";
  if (!is_fp8 && request.kv.name != unasked) {
    return absl::StrCat("keeps its KV cache in ", unasked, " or fp8, not in ", request.kv.name);
  }
  const DType kept = is_fp8 ? DType::kE4M3 : unasked == "f32" ? DType::kF32 : DType::kBF16;
  const int64_t head_dim = request.model.architecture.runtime_config->head_dim;
  if (!cuda::AttentionSupports(kept, head_dim)) {
    return absl::StrCat("has no attention on GPUs for heads of ", head_dim, " over a KV cache in ",
                        request.kv.name);
  }
  if (request.policy.budget_tokens > 0) return "keeps every token in the KV cache (--kv-budget)";
  if (request.policy.read_tokens > 0) return "reads the whole KV cache in every step (--kv-read)";
  if (request.model.architecture.layers_per_kv > 1) {
    return "keeps a KV cache for every layer (--layers-per-kv)";
  }
  return "";
}

std::string WhyNoSuchContext(const PlanRequest& request) {
  const int64_t most = request.model.architecture.MostServedTokens();
  const double longest =
      std::max(static_cast<double>(request.context), request.input_tokens + request.output_tokens);
  if (longest <= static_cast<double>(most)) return "";
  return absl::StrFormat("keeps contexts to the %d tokens of this model's sliding window", most);
}

}  // namespace

std::string WhyNotServed(const PlanRequest& request, const Candidate& candidate) {
  if (!request.gpu.has_cuda) {
    return absl::StrCat("computes on GPUs through CUDA alone, which ", request.gpu.title, " lacks");
  }
  if (std::string why = WhyNoSuchWeights(request); !why.empty()) return why;
  if (std::string why = WhyNoSuchKvCache(request); !why.empty()) return why;
  if (std::string why = WhyNoSuchContext(request); !why.empty()) return why;
  if (candidate.layout.replicas > kMostServedReplicas) {
    return absl::StrCat("has at most ", kMostServedReplicas, " replicas behind one controller");
  }
  return "";
}

}  // namespace lockstep::plan
