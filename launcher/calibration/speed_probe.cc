#include "launcher/calibration/speed_probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/kv_bytes.h"
#include "deploy/plan/stage_work.h"
#include "kernels/backend.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"
#include "runtime/worker/preflight.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = 16;
constexpr int64_t kShort = 16;   // tokens of a context that costs nothing
constexpr int64_t kLong = 4096;  // of one whose cache no processor's own caches hold
constexpr int64_t kLongSeqs = 4;
constexpr int64_t kChunk = 128;  // prompt tokens of a step
constexpr int kMinPasses = 3;
constexpr int kMaxPasses = 25;
constexpr int kTurns = 9;
// Steps of a few tokens are short, and what decodes consist of.
constexpr size_t kFewTokens = 8;
constexpr int kRepeatsOfFew = 3;
// What is told from the difference of two times is at least this share of the larger.
constexpr double kLeastShare = 0.02;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Format {
  const char* name;
  WeightDType dtype;  // of keys and values, too
  Quantization quantization;
};
constexpr Format kFormats[] = {{"bf16", WeightDType::kBF16, Quantization::kNone},
                               {"f32", WeightDType::kF32, Quantization::kNone},
                               {"int8", WeightDType::kBF16, Quantization::kInt8},
                               {"int4", WeightDType::kBF16, Quantization::kInt4}};

// Models in 4 bits have an LM head in 8.
bool IsWanted(const Format& format, const std::string& weights) {
  return weights.empty() || weights == format.name ||
         (weights == "int4" && format.quantization == Quantization::kInt8);
}

// Tensor parallel groups that compute at the same time, each on a model of its own.
struct Job {
  ProcessGrid group;  // one of them
  RankGroups groups;  // as stages of a pipeline
  RankGroups all;     // as if they were one group
  int tp_rank() const { return groups.tp->rank(); }
};

absl::StatusOr<Job> MakeJob(const MpiSession& session, int tp) {
  ASSIGN_OR_RETURN(const ProcessGrid group, ProcessGrid::Create(tp, 1));
  ASSIGN_OR_RETURN(const ProcessGrid stages, ProcessGrid::Create(tp, session.world_size() / tp));
  ASSIGN_OR_RETURN(const ProcessGrid all, ProcessGrid::Create(session.world_size(), 1));
  Job job{group, {}, {}};
  ASSIGN_OR_RETURN(job.groups, MakeMpiGroups(session, stages));
  ASSIGN_OR_RETURN(job.all, MakeMpiGroups(session, all));
  return job;
}

// A model's forward pass on this rank of its group.
class TimedStage {
 public:
  static absl::StatusOr<std::unique_ptr<TimedStage>> Load(const std::string& model,
                                                          const Format& format, int threads,
                                                          Job& job) {
    std::unique_ptr<TimedStage> timed(new TimedStage(job));
    ASSIGN_OR_RETURN(timed->backend_, MakeCpuBackend({.num_threads = threads}));
    ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(model));
    timed->vocab_size_ = checkpoint->config().vocab_size;
    timed->hidden_size_ = checkpoint->config().hidden_size;
    StageOptions options;
    options.weights = format.dtype;
    options.quantize = format.quantization;
    options.num_load_threads = threads;
    options.limits = {.max_batched_tokens = kChunk,
                      .max_num_seqs = kChunk,
                      .max_model_len = kLong,
                      .block_size = kBlockSize};
    ASSIGN_OR_RETURN(timed->stage_, LlamaStage::Load(*checkpoint, job.group, job.tp_rank(),
                                                     *timed->backend_, job.groups, options, {}));
    RETURN_IF_ERROR(timed->stage_->AllocateKvCache(kLongSeqs * kLong / kBlockSize));
    return timed;
  }

  // While the other groups sleep; known to the first alone.
  absl::StatusOr<double> TimeFirstGroup(const StepBatch& batch) {
    std::vector<double> times;
    for (int i = 0; i < kTurns && job_.groups.pp->rank() == 0; ++i) {
      const double begin = Now();
      RETURN_IF_ERROR(stage_->Forward(batch));
      times.push_back(Now() - begin);
    }
    RETURN_IF_ERROR(job_.all.tp->Barrier());
    return times.empty() ? 0.0 : Median(std::move(times));
  }

  // When the groups take turns, each after the other's message; known to the first alone.
  absl::StatusOr<double> TimeTurn(const StepBatch& batch) {
    Communicator& stages = *job_.groups.pp;
    const int next = (stages.rank() + 1) % stages.size();
    const int previous = (stages.rank() + stages.size() - 1) % stages.size();
    std::vector<float> message(static_cast<size_t>(hidden_size_));
    const auto bytes = static_cast<int64_t>(message.size() * sizeof(float));
    std::vector<double> times;
    for (int i = 0; i < kTurns; ++i) {
      const double begin = Now();
      if (stages.rank() > 0) RETURN_IF_ERROR(stages.Recv(previous, message.data(), bytes));
      RETURN_IF_ERROR(stage_->Forward(batch));
      RETURN_IF_ERROR(stages.Send(next, message.data(), bytes));
      if (stages.rank() == 0) RETURN_IF_ERROR(stages.Recv(previous, message.data(), bytes));
      times.push_back((Now() - begin) / stages.size());
    }
    return Median(std::move(times));
  }

  StepBatch Batch(int64_t num_seqs, int64_t context, int64_t new_tokens) const {
    return MakeUniformBatch({num_seqs, context, new_tokens, kBlockSize, vocab_size_});
  }

  // Seconds of each batch, the median of passes through all of them: what disturbs the machine for
  // a while disturbs all alike.
  absl::StatusOr<std::vector<double>> Time(const std::vector<StepBatch>& batches, double seconds) {
    std::vector<std::vector<double>> times(batches.size());
    double first_pass = 0;
    for (const StepBatch& batch : batches) {  // warms up, too
      ASSIGN_OR_RETURN(const double spent, TimeOnce(batch));
      first_pass += spent;
    }
    // Rank 0 decides for all.
    float num_passes = job_.all.tp->rank() == 0 ? static_cast<float>(seconds / first_pass) : 0.0f;
    RETURN_IF_ERROR(job_.all.tp->AllReduceSum(&num_passes, 1));
    const int passes =
        std::clamp(static_cast<int>(std::min(num_passes, 1e6f)), kMinPasses, kMaxPasses);
    for (int pass = 0; pass < passes; ++pass) {
      for (size_t i = 0; i < batches.size(); ++i) {
        const int repeats = batches[i].token_ids.size() <= kFewTokens ? kRepeatsOfFew : 1;
        for (int repeat = 0; repeat < repeats; ++repeat) {
          ASSIGN_OR_RETURN(const double spent, TimeOnce(batches[i]));
          times[i].push_back(spent);
        }
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& each : times) medians.push_back(Median(std::move(each)));
    return medians;
  }

 private:
  explicit TimedStage(Job& job) : job_(job) {}

  absl::StatusOr<double> TimeOnce(const StepBatch& batch) {
    RETURN_IF_ERROR(job_.all.tp->Barrier());
    const double begin = Now();
    RETURN_IF_ERROR(stage_->Forward(batch));
    RETURN_IF_ERROR(job_.groups.tp->Barrier());
    return Now() - begin;
  }

  Job& job_;
  int64_t vocab_size_ = 1;
  int64_t hidden_size_ = 1;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<LlamaStage> stage_;
};

// What a rank of the probed model holds and does, counted as predictions count it.
struct ProbedWork {
  double linear_bytes = 0;
  double kv_bytes_per_token = 0;
  double attention_flops = 0;
  double all_reduced_bytes = 0;  // per token
  double num_layers = 0;
};

absl::StatusOr<ProbedWork> WorkOf(const std::string& directory, const char* format, int tp) {
  ASSIGN_OR_RETURN(const plan::Model model, plan::LoadModel(directory));
  ASSIGN_OR_RETURN(const plan::WeightFormat weights, plan::FindWeightFormat(format));
  const plan::Architecture& architecture = model.architecture;
  const plan::StageWork stage = plan::WorkOfStages(architecture, weights, {.tp = tp}).front();
  const auto kv = plan::FindKvFormat(weights.name == "f32" ? "f32" : "bf16");
  ProbedWork work;
  work.linear_bytes = stage.linear_bytes;
  work.kv_bytes_per_token =
      static_cast<double>(plan::KvBytesPerToken({architecture, *kv, tp, 0, stage.layers}));
  work.attention_flops = stage.attention_flops;
  work.all_reduced_bytes =
      stage.all_reduces * static_cast<double>(architecture.hidden_size) * sizeof(float);
  work.num_layers = stage.num_layers;
  return work;
}

class SpeedProbe {
 public:
  SpeedProbe(const SpeedProbeOptions& options, Job& job) : options_(options), job_(job) {
    speed_.tp = options.tp;
    speed_.groups = job.groups.pp->size();
    speed_.threads = options.threads;
  }

  absl::StatusOr<plan::RankSpeed> Run(const LinkSpeeds& links) {
    constexpr double kGiga = 1e9;
    if (links.tp) speed_.all_reduce_gb_s = links.tp->bytes_per_second / kGiga;
    // Known to those before the last stage.
    if (links.next_stage) speed_.send_gb_s = links.next_stage->bytes_per_second / kGiga;
    if (speed_.groups > 1) RETURN_IF_ERROR(MeasureHandover());
    RETURN_IF_ERROR(MeasureLayerOverhead());
    for (const Format& format : kFormats) {
      if (IsWanted(format, options_.weights)) RETURN_IF_ERROR(MeasureFormat(format));
    }
    return speed_;
  }

 private:
  absl::StatusOr<std::unique_ptr<TimedStage>> Load(const std::string& model, const Format& format) {
    return TimedStage::Load(model, format, options_.threads, job_);
  }

  // What a stage takes longer when it slept until it was its turn.
  absl::Status MeasureHandover() {
    ASSIGN_OR_RETURN(const auto stage, Load(options_.layers_model, kFormats[0]));
    const StepBatch batch = stage->Batch(1, kShort, 1);
    ASSIGN_OR_RETURN(const double alone, stage->TimeFirstGroup(batch));
    ASSIGN_OR_RETURN(const double turn, stage->TimeTurn(batch));
    speed_.send_us = std::max(0.0, turn - alone) * 1e6;
    return absl::OkStatus();
  }

  absl::Status MeasureLayerOverhead() {
    ASSIGN_OR_RETURN(const auto stage, Load(options_.overhead_model, kFormats[0]));
    ASSIGN_OR_RETURN(const ProbedWork work,
                     WorkOf(options_.overhead_model, kFormats[0].name, options_.tp));
    ASSIGN_OR_RETURN(const auto seconds,
                     stage->Time({stage->Batch(1, kShort, 1)}, options_.seconds / 5));
    speed_.layer_us = seconds[0] / work.num_layers * 1e6;
    return absl::OkStatus();
  }

  absl::Status MeasureFormat(const Format& format) {
    static constexpr int64_t kTokens[] = {1, 2, 4, 8, 16, 32, 64, kChunk};
    ASSIGN_OR_RETURN(const auto stage, Load(options_.layers_model, format));
    ASSIGN_OR_RETURN(const ProbedWork work,
                     WorkOf(options_.layers_model, format.name, options_.tp));
    std::vector<StepBatch> batches;
    for (const int64_t tokens : kTokens) batches.push_back(stage->Batch(tokens, kShort, 1));
    const plan::FormatSpeed* const same_cache = MeasuredCache(format.dtype);
    if (same_cache == nullptr) {
      batches.push_back(stage->Batch(kLongSeqs, kShort, 1));
      batches.push_back(stage->Batch(kLongSeqs, kLong, 1));
      batches.push_back(stage->Batch(1, kChunk, kChunk));
      batches.push_back(stage->Batch(1, kLong, kChunk));
    }
    ASSIGN_OR_RETURN(const std::vector<double> seconds, stage->Time(batches, options_.seconds));
    plan::FormatSpeed speed;
    speed.weights = format.name;
    for (size_t i = 0; i < std::size(kTokens); ++i) {
      speed.linear.push_back(Linear(work, static_cast<double>(kTokens[i]), seconds[i]));
    }
    if (same_cache == nullptr) {
      AddCache(work, seconds.data() + std::size(kTokens), speed);
    } else {
      speed.kv_gb_s = same_cache->kv_gb_s;
      speed.attention_gflop_s = same_cache->attention_gflop_s;
    }
    speed_.formats.push_back(std::move(speed));
    return absl::OkStatus();
  }

  // Of a format that was measured before with the same keys and values, or null.
  const plan::FormatSpeed* MeasuredCache(WeightDType dtype) const {
    for (const plan::FormatSpeed& speed : speed_.formats) {
      for (const Format& format : kFormats) {
        if (speed.weights == format.name && format.dtype == dtype) return &speed;
      }
    }
    return nullptr;
  }

  // What is left of a step without its overheads and its bytes between ranks.
  plan::CurvePoint Linear(const ProbedWork& work, double tokens, double seconds) const {
    double rest = seconds - work.num_layers * speed_.layer_us * 1e-6;
    if (speed_.tp > 1) {
      rest -= tokens * work.all_reduced_bytes / (speed_.all_reduce_gb_s * 1e9);
    }
    return {tokens, std::max(rest, kLeastShare * seconds) / work.linear_bytes * 1e9};
  }

  // seconds: decodes with a short and a long context, a prompt's first chunk and a late one.
  static void AddCache(const ProbedWork& work, const double* seconds, plan::FormatSpeed& speed) {
    const auto difference = [&](double less, double more) {
      return std::max(more - less, kLeastShare * more);
    };
    constexpr auto kMoreRead = static_cast<double>(kLongSeqs * (kLong - kShort));
    constexpr auto kMoreAttended = static_cast<double>(kChunk * (kLong - kChunk));
    speed.kv_gb_s = kMoreRead * work.kv_bytes_per_token / difference(seconds[0], seconds[1]) * 1e-9;
    speed.attention_gflop_s =
        kMoreAttended * work.attention_flops / difference(seconds[2], seconds[3]) * 1e-9;
  }

  const SpeedProbeOptions& options_;
  Job& job_;
  plan::RankSpeed speed_;
};

}  // namespace

absl::StatusOr<plan::RankSpeed> MeasureRankSpeed(const MpiSession& session,
                                                 const SpeedProbeOptions& options) {
  if (session.world_size() % options.tp != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job of ", session.world_size(), " ranks is no number of groups of ", options.tp));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeCpuBackend({}));
  ASSIGN_OR_RETURN(Job job, MakeJob(session, options.tp));
  ASSIGN_OR_RETURN(const LinkSpeeds links, MeasureLinks(job.groups, *backend));
  return SpeedProbe(options, job).Run(links);
}

}  // namespace lockstep
