#include "deploy/plan/held_by_serve.h"

#include "absl/strings/str_cat.h"
#include "deploy/plan/weight_bytes.h"

namespace lockstep::plan {
namespace {

constexpr int kMostReplicas = 256;  // of --replicas

// How it keeps the cache beside such weights.
const char* KvFormatBeside(const WeightFormat& weights) {
  return weights.name == "f32" ? "f32" : "bf16";
}

std::string WhyNoSuchWeights(const PlanRequest& request) {
  const Architecture& model = request.model.architecture;
  const std::string& format = request.weights.name;
  if (!model.runtime_config) {
    return absl::StrCat("does not serve this kind of model (", model.model_type, ")");
  }
  if (!HeldOnGpus(model, request.weights)) {
    return absl::StrCat("does not hold weights in ", format, " on GPUs",
                        model.stored_weights.empty() ? "" : ", of this checkpoint");
  }
  if (format == "fp8" && !request.gpu.Multiplies(Operands::kFp8)) {
    return absl::StrCat("holds fp8 weights on GPUs of compute capability 8.9 or later only; ",
                        request.gpu.title, " cannot multiply them");
  }
  return "";
}

std::string WhyNoSuchKvCache(const PlanRequest& request) {
  if (const std::string held = KvFormatBeside(request.weights); request.kv.name != held) {
    return absl::StrCat("keeps its KV cache in ", held, ", not in ", request.kv.name);
  }
  if (request.policy.budget_tokens > 0) return "keeps every token in the KV cache (--kv-budget)";
  if (request.policy.read_tokens > 0) return "reads the whole KV cache in every step (--kv-read)";
  if (request.model.architecture.layers_per_kv > 1) {
    return "keeps a KV cache for every layer (--layers-per-kv)";
  }
  return "";
}

}  // namespace

std::string WhyNotServed(const PlanRequest& request, const Candidate& candidate) {
  if (!request.gpu.has_cuda) {
    return absl::StrCat("computes on GPUs through CUDA alone, which ", request.gpu.title, " lacks");
  }
  if (std::string why = WhyNoSuchWeights(request); !why.empty()) return why;
  if (std::string why = WhyNoSuchKvCache(request); !why.empty()) return why;
  if (candidate.layout.replicas > kMostReplicas) {
    return absl::StrCat("has at most ", kMostReplicas, " replicas behind one controller");
  }
  return "";
}

}  // namespace lockstep::plan
