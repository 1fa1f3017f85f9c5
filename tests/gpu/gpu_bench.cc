// Speed of the forward pass on one GPU: whole steps, then each kernel of a step by itself, beside
// what the device can do at best, measured in the same run.
//
//   gpu_bench --shape llama-3.1-8b            weights are made up, in memory
//   gpu_bench --model DIR
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/checkpoint/model_writer.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"
#include "model/llama/weights.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_limits.h"
#include "tests/gpu/step_gaps.h"
#include "tests/gpu/step_kernels.h"

namespace lockstep::bench {
namespace {

struct BenchOptions {
  std::string model;
  std::string shape = "llama-3.1-8b";
  std::string scratch = "/dev/shm";
  std::vector<int64_t> decode_seqs = {1, 64};
  int64_t context = 1024;
  int64_t prefill_tokens = 8192;
  int repeats = 20;
  std::string quantize = "none";
  bool deterministic = false;
  bool json = false;
};

constexpr int kBlockSize = 16;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  LS_CHECK(value.ok()) << value.status();
  return *std::move(value);
}
void Ok(const absl::Status& status) { LS_CHECK(status.ok()) << status; }

void Log(const std::string& line) { fmt::print(stderr, "gpu_bench: {}\n", line); }

class StepBench {
 public:
  StepBench(const BenchOptions& options, const std::string& model, cuda::CudaBackend& backend)
      : options_(options), backend_(backend) {
    groups_.tp = MakeSelfCommunicator();
    groups_.pp = MakeSelfCommunicator();
    const auto checkpoint = Value(Checkpoint::Open(model));
    config_ = checkpoint->config();
    const int64_t most_seqs =
        *std::max_element(options.decode_seqs.begin(), options.decode_seqs.end());
    StageOptions stage;
    stage.weights = WeightDType::kBF16;
    stage.quantize = *QuantizationOf(options.quantize);
    stage.num_load_threads = 8;
    stage.limits = {.max_batched_tokens = std::max(options.prefill_tokens, most_seqs),
                    .max_num_seqs = most_seqs,
                    .max_model_len = std::max(options.prefill_tokens, options.context) + 1,
                    .block_size = kBlockSize};
    Log("loading");
    const double begin = Seconds();
    stage_ = Value(
        LlamaStage::Load(*checkpoint, *ProcessGrid::Create(1, 1), 0, backend_, groups_, stage, {}));
    backend_.Synchronize();
    const double seconds = Seconds() - begin;
    report_["load"] = {{"seconds", seconds},
                       {"gb_per_s", 1e-9 * stage_->load_stats().loaded_bytes / seconds}};
    const int64_t blocks = std::max(most_seqs * (options.context / kBlockSize + 1),
                                    options.prefill_tokens / kBlockSize + 1);
    Ok(stage_->AllocateKvCache(blocks));
  }

  const ModelConfig& config() const { return config_; }

  nlohmann::json Run(const DeviceLimits& limits) {
    for (const int64_t seqs : options_.decode_seqs)
      report_["decode"].push_back(Decode(seqs, limits));
    report_["prefill"] = Prefill(limits);
    return report_;
  }

 private:
  // Of a step without the LM head and sampling: the mean of a row of steps, as they
  // follow each other in serving, and how long the host needs to issue one.
  nlohmann::json Time(const StepBatch& batch, int repeats) {
    for (int i = 0; i < 3; ++i) Ok(stage_->Forward(batch));  // chosen, recorded, replayed
    backend_.Synchronize();
    const double begin = Seconds();
    for (int i = 0; i < repeats; ++i) Ok(stage_->Forward(batch));
    const double issued = Seconds();
    backend_.Synchronize();
    return {{"seconds", (Seconds() - begin) / repeats},
            {"issue_seconds", (issued - begin) / repeats}};
  }

  bool is_fp8() const { return options_.quantize == "fp8"; }
  double Rate(const DeviceLimits& limits) const {
    return is_fp8() ? limits.fp8_flops_per_s : limits.bf16_flops_per_s;
  }

  nlohmann::json Decode(int64_t seqs, const DeviceLimits& limits) {
    Log(fmt::format("decode of {} sequences at context {}", seqs, options_.context));
    const UniformBatch decodes = {seqs, options_.context, 1, kBlockSize, config_.vocab_size};
    nlohmann::json result = Time(MakeUniformBatch(decodes), options_.repeats);
    if (seqs <= stage_->max_device_logits_rows()) result["idle"] = Idle(decodes);
    const StepCost cost = CostOfStep(config_, seqs, seqs * options_.context,
                                     seqs * options_.context, is_fp8() ? 1 : 2);
    const double floor = std::max(cost.bytes / limits.read_bytes_per_s, cost.flops / Rate(limits));
    const double seconds = result["seconds"];
    result["sequences"] = seqs;
    result["tokens_per_s"] = static_cast<double>(seqs) / seconds;
    result["gb_per_s"] = 1e-9 * cost.bytes / seconds;
    result["share_of_floor"] = floor / seconds;
    return result;
  }

  // Of steps with the LM head and sampling.
  nlohmann::json Idle(const UniformBatch& decodes) {
    const StepGaps gaps =
        Value(MeasureStepGaps(*stage_, backend_, groups_, decodes, 5 * options_.repeats));
    return {{"step_seconds", gaps.step_seconds},
            {"median_share", gaps.median_share},
            {"p95_share", gaps.p95_share},
            {"late_share", gaps.late_share}};
  }

  nlohmann::json Prefill(const DeviceLimits& limits) {
    const int64_t tokens = options_.prefill_tokens;
    Log(fmt::format("prefill of {} tokens", tokens));
    nlohmann::json result =
        Time(MakeUniformBatch({1, tokens, tokens, kBlockSize, config_.vocab_size}),
             std::max(1, options_.repeats / 4));
    const StepCost cost =
        CostOfStep(config_, tokens, tokens * (tokens + 1) / 2, tokens, is_fp8() ? 1 : 2);
    const double seconds = result["seconds"];
    result["tokens"] = tokens;
    result["tokens_per_s"] = static_cast<double>(tokens) / seconds;
    result["tflop_per_s"] = 1e-12 * cost.flops / seconds;
    result["share_of_products"] = cost.flops / seconds / Rate(limits);
    return result;
  }

  const BenchOptions& options_;
  cuda::CudaBackend& backend_;
  RankGroups groups_;
  ModelConfig config_;
  std::unique_ptr<LlamaStage> stage_;
  nlohmann::json report_;
};

void PrintSteps(const nlohmann::json& report) {
  fmt::print("{}\n", report["device"].get<std::string>());
  fmt::print(
      "limits   read {:.0f} GB/s, copy {:.0f} GB/s, bf16 products {:.0f} TFLOP/s, fp8 "
      "{:.0f}\n",
      report["limits"]["read_gb_per_s"].get<double>(),
      report["limits"]["copy_gb_per_s"].get<double>(),
      report["limits"]["bf16_tflop_per_s"].get<double>(),
      report["limits"]["fp8_tflop_per_s"].get<double>());
  const auto& steps = report["steps"];
  fmt::print("load     {:.1f} s, {:.2f} GB/s\n", steps["load"]["seconds"].get<double>(),
             steps["load"]["gb_per_s"].get<double>());
  for (const auto& decode : steps["decode"]) {
    fmt::print(
        "decode   {:4} sequences  {:9.1f} tokens/s  {:8.3f} ms  {:6.0f} GB/s  {:5.1f} % of the "
        "floor, issued in {:.3f} ms\n",
        decode["sequences"].get<int64_t>(), decode["tokens_per_s"].get<double>(),
        1e3 * decode["seconds"].get<double>(), decode["gb_per_s"].get<double>(),
        100 * decode["share_of_floor"].get<double>(), 1e3 * decode["issue_seconds"].get<double>());
    if (!decode.contains("idle")) continue;
    const auto& idle = decode["idle"];
    fmt::print(
        "  GPU idle between steps {:5.2f} % (p95 {:.2f} %) of {:.3f} ms with sampling, {:.0f} % of "
        "steps issued late\n",
        100 * idle["median_share"].get<double>(), 100 * idle["p95_share"].get<double>(),
        1e3 * idle["step_seconds"].get<double>(), 100 * idle["late_share"].get<double>());
  }
  const auto& prefill = steps["prefill"];
  fmt::print(
      "prefill  {:4} tokens     {:9.1f} tokens/s  {:8.3f} ms  {:6.1f} TFLOP/s  {:5.1f} % of "
      "large products\n",
      prefill["tokens"].get<int64_t>(), prefill["tokens_per_s"].get<double>(),
      1e3 * prefill["seconds"].get<double>(), prefill["tflop_per_s"].get<double>(),
      100 * prefill["share_of_products"].get<double>());
}

void PrintKernels(const nlohmann::json& report) {
  for (const auto& step : report["kernels"]) {
    fmt::print("kernels of {}\n", step["step"].get<std::string>());
    for (const auto& kernel : step["kernels"]) {
      fmt::print(
          "  {:22} {:9.2f} us x {:3}  {:8.0f} GB/s  {:7.1f} TFLOP/s  {:5.1f} % of its limit\n",
          kernel["name"].get<std::string>(), 1e6 * kernel["seconds"].get<double>(),
          kernel["times"].get<int64_t>(), kernel["gb_per_s"].get<double>(),
          kernel["tflop_per_s"].get<double>(), 100 * kernel["share_of_limit"].get<double>());
    }
  }
}

std::string MakeModel(const BenchOptions& options) {
  if (!options.model.empty()) return options.model;
  const auto directory = std::filesystem::path(options.scratch) / ("gpu_bench-" + options.shape);
  if (std::filesystem::exists(directory / "config.json")) return directory;
  Log("making weights of " + options.shape + " in " + directory.string());
  SynthesizeOptions synthesize;
  synthesize.shape = options.shape;
  synthesize.output = directory;
  Value(SynthesizeModel(synthesize));
  return directory;
}

int Main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app{"Speed of the forward pass on one GPU."};
  app.add_option("--model", options.model,
                 "checkpoint directory; else weights of --shape are made up");
  app.add_option("--shape", options.shape, "of the weights made up");
  app.add_option("--scratch", options.scratch, "where they are written");
  app.add_option("--decode", options.decode_seqs, "sequences in a decode step")->delimiter(',');
  app.add_option("--context", options.context, "of decoding sequences, tokens")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--prefill", options.prefill_tokens, "prompt tokens in one step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--repeats", options.repeats, "steps of a measurement")
      ->check(CLI::Range(1, 10000));
  app.add_option("--quantize", options.quantize, "of the steps' weights: none or fp8")
      ->check(CLI::IsMember({"none", "fp8"}));
  app.add_flag("--deterministic", options.deterministic, "of lockstep serve");
  app.add_flag("--json", options.json, "one JSON object on stdout");
  CLI11_PARSE(app, argc, argv);

  const DeviceLimits limits = MeasureDeviceLimits(0);
  const auto backend = Value(cuda::CudaBackend::Create(
      {.device = 0, .compute = DType::kBF16, .deterministic = options.deterministic}));
  nlohmann::json report;
  report["device"] = backend->Description();
  report["limits"] = {{"read_gb_per_s", 1e-9 * limits.read_bytes_per_s},
                      {"copy_gb_per_s", 1e-9 * limits.copy_bytes_per_s},
                      {"bf16_tflop_per_s", 1e-12 * limits.bf16_flops_per_s},
                      {"fp8_tflop_per_s", 1e-12 * limits.fp8_flops_per_s}};
  ModelConfig config;
  {
    StepBench steps(options, MakeModel(options), *backend);
    config = steps.config();
    report["steps"] = steps.Run(limits);
  }
  for (const int64_t seqs : options.decode_seqs) {
    report["kernels"].push_back(
        TimeKernels(*backend, config, {seqs, options.context, 1, kBlockSize}, limits));
  }
  report["kernels"].push_back(TimeKernels(
      *backend, config, {1, options.prefill_tokens, options.prefill_tokens, kBlockSize}, limits));
  report["kernels"].push_back(TimeKernels(*backend, config, {1, 32768, 1, kBlockSize}, limits));
  report["kernels"].push_back(TimeKernels(*backend, config, {32, 32768, 1, kBlockSize}, limits));
  if (options.json) {
    fmt::print("{}\n", report.dump());
  } else {
    PrintSteps(report);
    PrintKernels(report);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
