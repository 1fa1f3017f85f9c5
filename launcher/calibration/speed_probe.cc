#include "launcher/calibration/speed_probe.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "deploy/plan/catalog.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/stage_work.h"
#include "kernels/base/status_macros.h"
#include "launcher/calibration/timed_stage.h"
#include "runtime/worker/preflight.h"

namespace lockstep {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;
// What is told from the difference of two times is at least this share of the larger.
constexpr double kLeastShare = 0.02;
constexpr int64_t kLeastReducedBytes = 4096;

// Models in 4 bits have an LM head in 8, those in fp8 one in bf16.
bool IsWanted(const ProbeFormat& format, const std::string& weights) {
  return weights.empty() || weights == format.name ||
         (weights == "int4" && format.quantization == Quantization::kInt8) ||
         (weights == "fp8" && format.quantization == Quantization::kNone);
}

// What a rank of the probed model holds and does, counted as predictions count it.
struct ProbedWork {
  plan::StageWork stage;
  double kv_bytes_per_token = 0;
  double hidden_state_bytes = 0;  // per token, of an all-reduce
};

absl::StatusOr<ProbedWork> WorkOf(const std::string& directory, const char* format, int tp) {
  ASSIGN_OR_RETURN(const plan::Model model, plan::LoadModel(directory));
  ASSIGN_OR_RETURN(const plan::WeightFormat weights, plan::FindWeightFormat(format));
  const plan::Architecture& architecture = model.architecture;
  const auto kv = plan::FindKvFormat(weights.name == "f32" ? "f32" : "bf16");
  ProbedWork work;
  work.stage = plan::WorkOfStages(architecture, weights, {.tp = tp}).front();
  work.kv_bytes_per_token =
      static_cast<double>(plan::KvBytesPerToken({architecture, *kv, tp, 0, work.stage.layers}));
  work.hidden_state_bytes = work.stage.hidden_size * sizeof(float);
  return work;
}

class SpeedProbe {
 public:
  SpeedProbe(const SpeedProbeOptions& options, ProbeJob& job) : options_(options), job_(job) {
    speed_.tp = options.tp;
    speed_.groups = job.groups.pp->size();
    speed_.threads = options.device.cpu.num_threads;
  }

  absl::StatusOr<plan::RankSpeed> Run() {
    RETURN_IF_ERROR(MeasureOverheads());
    if (speed_.groups > 1) RETURN_IF_ERROR(MeasureHandover());
    for (const ProbeFormat& format : ProbeFormatsOf(on_gpus())) {
      if (!IsWanted(format, options_.weights)) continue;
      const absl::Status measured = MeasureFormat(format);
      // Not all GPUs compute in 8 bits; those of a job are alike.
      const bool may_lack = format.quantization == Quantization::kFp8 && options_.weights.empty();
      if (may_lack && absl::IsInvalidArgument(measured)) continue;
      RETURN_IF_ERROR(measured);
    }
    return speed_;
  }

 private:
  const ProbeSizes& sizes() const { return options_.sizes; }
  bool on_gpus() const { return options_.device.gpu.has_value(); }

  absl::StatusOr<std::unique_ptr<TimedStage>> Load(const std::string& model,
                                                   const ProbeFormat& format) {
    return TimedStage::Load({model, format, options_.device, sizes()}, job_);
  }

  // Links, and layers of next to no bytes.
  absl::Status MeasureOverheads() {
    const ProbeFormat& format = ProbeFormatsOf(on_gpus()).front();
    ASSIGN_OR_RETURN(const auto stage, Load(options_.models.overhead, format));
    RETURN_IF_ERROR(MeasureLinksOf(*stage));
    ASSIGN_OR_RETURN(const ProbedWork work,
                     WorkOf(options_.models.overhead, format.name, options_.tp));
    std::vector<StepBatch> batches = {stage->Tokens(1)};
    if (on_gpus()) {  // not recorded, where steps may be so long
      batches.push_back(stage->Tokens(std::min(2 * kProbePrompt, sizes().max_tokens)));
    }
    ASSIGN_OR_RETURN(const auto seconds, stage->Time(batches, options_.seconds / 5));
    speed_.layer_us = seconds[0] / work.stage.num_layers / kMicro;
    if (on_gpus()) speed_.launched_layer_us = seconds[1] / work.stage.num_layers / kMicro;
    return absl::OkStatus();
  }

  absl::Status MeasureLinksOf(TimedStage& stage) {
    PreflightMemory memory;
    ASSIGN_OR_RETURN(const LinkSpeeds links, MeasureLinks(stage.groups(), stage.backend(), memory));
    if (links.tp) speed_.all_reduce_gb_s = links.tp->bytes_per_second / kGiga;
    // Known to those before the last stage.
    if (links.next_stage) speed_.send_gb_s = links.next_stage->bytes_per_second / kGiga;
    if (!on_gpus() || speed_.tp == 1) return absl::OkStatus();
    std::vector<int64_t> messages;
    for (int64_t bytes = kLeastReducedBytes; bytes <= sizes().most_reduced_bytes; bytes *= 4) {
      messages.push_back(bytes);
    }
    ASSIGN_OR_RETURN(const auto times,
                     MeasureAllReduces(*stage.groups().tp, stage.backend(), messages));
    for (size_t i = 0; i < messages.size(); ++i) {
      speed_.all_reduces.push_back(
          {static_cast<double>(messages[i]), absl::ToDoubleMicroseconds(times[i])});
    }
    return absl::OkStatus();
  }

  // What a stage takes longer when it slept until it was its turn.
  absl::Status MeasureHandover() {
    ASSIGN_OR_RETURN(const auto stage,
                     Load(options_.models.layers, ProbeFormatsOf(on_gpus()).front()));
    const StepBatch batch = stage->Tokens(1);
    ASSIGN_OR_RETURN(const double alone, stage->TimeFirstGroup(batch));
    ASSIGN_OR_RETURN(const double turn, stage->TimeTurn(batch));
    speed_.send_us = std::max(0.0, turn - alone) / kMicro;
    return absl::OkStatus();
  }

  absl::Status MeasureFormat(const ProbeFormat& format) {
    ASSIGN_OR_RETURN(const auto stage, Load(options_.models.layers, format));
    ASSIGN_OR_RETURN(const ProbedWork work,
                     WorkOf(options_.models.layers, format.name, options_.tp));
    std::vector<StepTokens> tokens;
    std::vector<StepBatch> batches;
    for (int64_t each = 1; each <= sizes().max_tokens; each *= sizes().tokens_factor) {
      batches.push_back(stage->Tokens(each));
      tokens.push_back({static_cast<double>(batches.back().num_tokens()),
                        static_cast<double>(batches.back().logits_rows.size())});
    }
    const plan::FormatSpeed* const same_cache = MeasuredCache(format.dtype);
    if (same_cache == nullptr) AddCacheSteps(*stage, batches);
    ASSIGN_OR_RETURN(const std::vector<double> seconds, stage->Time(batches, options_.seconds));
    plan::FormatSpeed speed;
    if (same_cache != nullptr) speed = *same_cache;
    speed.weights = format.name;
    speed.linear.clear();
    for (size_t i = 0; i < tokens.size(); ++i) AddLinear(work, tokens[i], seconds[i], speed);
    if (same_cache == nullptr) AddCache(work, seconds.data() + tokens.size(), speed);
    if (on_gpus()) AddProducts(work, tokens.back(), seconds[tokens.size() - 1], speed);
    speed_.formats.push_back(std::move(speed));
    return absl::OkStatus();
  }

  // Decodes with a short and a long context, a prompt's first chunk and a late one.
  void AddCacheSteps(const TimedStage& stage, std::vector<StepBatch>& batches) const {
    batches.push_back(stage.Batch(sizes().long_seqs, kProbeShort, 1));
    batches.push_back(stage.Batch(sizes().long_seqs, sizes().long_context, 1));
    batches.push_back(stage.Batch(1, sizes().max_tokens, sizes().max_tokens));
    batches.push_back(stage.Batch(1, sizes().long_context, sizes().max_tokens));
  }

  // Of a format that was measured before with the same keys and values, or null.
  const plan::FormatSpeed* MeasuredCache(DType dtype) const {
    for (const plan::FormatSpeed& speed : speed_.formats) {
      for (const ProbeFormat& format : ProbeFormatsOf(on_gpus())) {
        if (speed.weights == format.name && format.dtype == dtype) return &speed;
      }
    }
    return nullptr;
  }

  // Of a step, all, and those with logits, which alone go through the whole last layer.
  struct StepTokens {
    double all = 0;
    double with_logits = 0;
  };

  // What is left of a step without its overheads and its bytes between ranks.
  double LinearSeconds(const ProbedWork& work, const StepTokens& tokens, double seconds) const {
    double rest = seconds - work.stage.num_layers * speed_.layer_us * kMicro;
    if (speed_.tp > 1) {
      const auto all_reduce = [&](double of_tokens) {
        return plan::AllReduceSecondsBeyondLayer(speed_, of_tokens * work.hidden_state_bytes);
      };
      const double logits_only = work.stage.logits_only.all_reduces;
      rest -= (work.stage.all_reduces - logits_only) * all_reduce(tokens.all) +
              logits_only * all_reduce(tokens.with_logits);
    }
    return std::max(rest, kLeastShare * seconds);
  }

  // As predictions add up a step (plan::HostCosts). Steps come in the order of their sizes: what
  // tokens with logits take in the last layer is known from those before.
  void AddLinear(const ProbedWork& work, const StepTokens& tokens, double seconds,
                 plan::FormatSpeed& speed) const {
    double rest = LinearSeconds(work, tokens, seconds);
    double bytes = work.stage.linear_bytes;
    if (tokens.with_logits < tokens.all) {
      const double logits_only = work.stage.logits_only.bytes;
      rest = std::max(rest - plan::LinearSeconds(speed, logits_only, tokens.with_logits),
                      kLeastShare * seconds);
      bytes -= logits_only;
    }
    speed.linear.push_back({tokens.all, rest / bytes * 1e9});
  }

  // seconds: of AddCacheSteps.
  void AddCache(const ProbedWork& work, const double* seconds, plan::FormatSpeed& speed) const {
    const auto difference = [](double less, double more) {
      return std::max(more - less, kLeastShare * more);
    };
    const auto more_read =
        static_cast<double>(sizes().long_seqs * (sizes().long_context - kProbeShort));
    const auto more_attended =
        static_cast<double>(sizes().max_tokens * (sizes().long_context - sizes().max_tokens));
    speed.kv_gb_s =
        more_read * work.kv_bytes_per_token / difference(seconds[0], seconds[1]) / kGiga;
    speed.attention_gflop_s =
        more_attended * work.stage.attention_flops / difference(seconds[2], seconds[3]) / kGiga;
  }

  // Of the longest step, without the activations that the roofline counts by themselves.
  void AddProducts(const ProbedWork& work, const StepTokens& tokens, double seconds,
                   plan::FormatSpeed& speed) const {
    const double activations = tokens.all * work.stage.activation_bytes / (speed.kv_gb_s * kGiga);
    const double rest = LinearSeconds(work, tokens, seconds) - activations;
    const double flops = tokens.all * work.stage.linear_flops -
                         (tokens.all - tokens.with_logits) * work.stage.logits_only.flops;
    speed.products_gflop_s = flops / std::max(rest, kLeastShare * seconds) / kGiga;
  }

  const SpeedProbeOptions& options_;
  ProbeJob& job_;
  plan::RankSpeed speed_;
};

}  // namespace

absl::StatusOr<plan::RankSpeed> MeasureRankSpeed(const MpiSession& session,
                                                 const SpeedProbeOptions& options) {
  ASSIGN_OR_RETURN(ProbeJob job, MakeProbeJob(session, options.tp));
  return SpeedProbe(options, job).Run();
}

}  // namespace lockstep
