#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "deploy/plan/host_prediction.h"
#include "deploy/plan/replica_queue.h"
#include "deploy/plan/report.h"
#include "deploy/plan/weight_bytes.h"
#include "kernels/base/check.h"

namespace lockstep::plan {
namespace {

// What `serve` does unasked.
constexpr double kUtilization = 0.90;
constexpr HostLimits kLimits;

// A directory stands as it was given, for a config.json the one that it lies in; a built-in name
// stands for one.
std::string ModelArgument(const Model& model) {
  return model.directory.empty() ? absl::StrCat("/models/", model.name) : model.directory;
}

// As a shell takes it for one word.
std::string ShellWord(const std::string& text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("/._-+=:,@%", c);
  });
  if (is_plain && !text.empty()) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// What makes ranks hold the weights as planned: a checkpoint's own FP8 they keep unasked.
std::string FormatFlags(const PlanRequest& request) {
  const Architecture& model = request.model.architecture;
  const std::string& format = request.weights.name;
  if (format == "bf16" && model.dtype == DType::kF16) {
    return " --dtype f16";  // as many bytes, and the checkpoint's own numbers
  }
  if (format == "bf16" || format == "f32") return absl::StrCat(" --dtype ", format);
  const auto held = HeldOnGpus(model, request.weights, request.gpu.Multiplies(Operands::kFp8));
  LS_CHECK(held.has_value()) << format;
  std::string flags = model.dtype == DType::kF32 ? " --dtype bf16" : "";  // of all the rest
  if (held->quantization != Quantization::kNone) {
    absl::StrAppend(&flags, " --quantize ", std::string(QuantizationName(held->quantization)));
  }
  return flags;
}

}  // namespace

std::string LaunchCommand(const Plan& plan) {
  const Candidate* answer = plan.answer();
  if (answer == nullptr || !plan.not_served.empty()) return "";
  const PlanRequest& request = plan.request;
  const Layout& layout = answer->layout;
  std::string flags = absl::StrCat(ShellWord(ModelArgument(request.model)), " --tp ", layout.tp,
                                   " --pp ", layout.pp);
  if (layout.replicas > 1) absl::StrAppend(&flags, " --replicas ", layout.replicas);
  absl::StrAppend(&flags, FormatFlags(request), " --max-model-len ",
                  std::min(answer->memory.max_request_tokens,
                           std::max(request.longest_request(), request.context)),
                  " --max-num-seqs ", MaxNumSeqs(request, *answer));
  if (request.memory.block_size != kLimits.block_size) {
    absl::StrAppend(&flags, " --block-size ", request.memory.block_size);
  }
  if (request.engine.max_batched_tokens != kLimits.max_batched_tokens) {
    absl::StrAppend(&flags, " --max-batched-tokens ", request.engine.max_batched_tokens);
  }
  if (request.memory.utilization != kUtilization) {
    absl::StrAppend(&flags, " --gpu-memory-utilization ", request.memory.utilization);
  }
  // Hosts are what ranks look at, even where one link joins several.
  if (layout.tp > request.gpus_per_node) absl::StrAppend(&flags, " --allow-tp-across-nodes");
  if (request.kv.name == "fp8") absl::StrAppend(&flags, " --kv-cache-dtype fp8");
  if (answer->nodes == 1) return absl::StrCat("lockstep serve ", flags);
  const int tasks = std::min(RanksPerNode(request, layout.tp), layout.gpus());
  return absl::StrCat("sbatch --nodes=", answer->nodes, " --ntasks-per-node=", tasks,
                      " --gpus-per-node=", tasks, " deploy/slurm/serve.sbatch ", flags);
}

}  // namespace lockstep::plan
