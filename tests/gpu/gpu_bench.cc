// Speed of the forward pass on one GPU: whole steps, then each kernel of a step by itself, beside
// what the device can do at best, measured in the same run.
//
//   gpu_bench --shape llama-3.1-8b            weights are made up, in memory
//   gpu_bench --model DIR
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "kernels/base/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/checkpoint/model_writer.h"
#include "model/llama/llama_stage.h"
#include "model/llama/padded_batch.h"
#include "model/llama/uniform_batch.h"
#include "model/llama/weights.h"
#include "nlohmann/json.hpp"
#include "tests/bench/step_cost.h"
#include "tests/gpu/bench_report.h"
#include "tests/gpu/device_limits.h"
#include "tests/gpu/kv_copy_speed.h"
#include "tests/gpu/measuring.h"
#include "tests/gpu/step_gaps.h"
#include "tests/gpu/step_kernels.h"

namespace lockstep::bench {
namespace {

struct BenchOptions {
  std::string model;
  std::string shape = "llama-3.1-8b";
  std::string scratch = "/dev/shm";
  std::vector<int64_t> decode_seqs = {1, 64};
  std::vector<int64_t> guesses = {4, 8, 16};
  int64_t context = 1024;
  int64_t prefill_tokens = 8192;
  int repeats = 20;
  std::string quantize = "none";
  bool deterministic = false;
  bool overlap = true;
  int64_t long_context = 32768;
  int64_t rotated_mib = 512;
  std::string json;
  std::string compare;
};

constexpr int kBlockSize = 16;

void Ok(const absl::Status& status) { LS_CHECK(status.ok()) << status; }

void Log(const std::string& line) { fmt::print(stderr, "gpu_bench: {}\n", line); }

class StepBench {
 public:
  StepBench(const BenchOptions& options, const std::string& model, MarkingBackend& backend,
            BenchReport& report)
      : options_(options), backend_(backend), report_(report) {
    groups_.tp = MakeSelfCommunicator();
    groups_.pp = MakeSelfCommunicator();
    const auto checkpoint = Value(Checkpoint::Open(model));
    config_ = checkpoint->config();
    const int64_t most_seqs =
        *std::max_element(options.decode_seqs.begin(), options.decode_seqs.end());
    const int64_t most_guesses = *std::max_element(options.guesses.begin(), options.guesses.end());
    StageOptions stage;
    stage.weights = WeightDType::kBF16;
    stage.quantize = *QuantizationOf(options.quantize);
    stage.num_load_threads = 8;
    stage.limits = {
        .max_batched_tokens = std::max({options.prefill_tokens, most_seqs, 1 + most_guesses}),
        .max_num_seqs = most_seqs,
        .max_model_len = std::max(options.prefill_tokens, options.context) + 1,
        .block_size = kBlockSize};
    Log("loading");
    const double begin = Seconds();
    stage_ = Value(
        LlamaStage::Load(*checkpoint, *ProcessGrid::Create(1, 1), 0, backend_, groups_, stage, {}));
    backend_.Synchronize();
    const double seconds = Seconds() - begin;
    report_.AddLoad(
        {{"seconds", seconds}, {"gb_per_s", 1e-9 * stage_->load_stats().loaded_bytes / seconds}});
    const int64_t blocks = std::max(most_seqs * (options.context / kBlockSize + 1),
                                    options.prefill_tokens / kBlockSize + 1);
    Ok(stage_->AllocateKvCache(blocks));
  }

  const ModelConfig& config() const { return config_; }

  void Run(const DeviceLimits& limits) {
    for (const int64_t seqs : options_.decode_seqs) report_.AddDecode(Decode(seqs, limits));
    for (const int64_t guesses : options_.guesses) report_.AddGuesses(Guess(guesses));
    report_.AddPrefill(Prefill(limits));
  }

 private:
  // That the device takes in without the host waiting: a decode's copies by its staging slots
  // (kernels/cuda/host_staging.h), a prompt's kernels, which are not replayed, by the driver.
  static constexpr int kDecodesToIssue = 8;
  static constexpr int kPromptsToIssue = 2;

  // Of a step without the LM head and sampling: the mean of a row of steps, as they
  // follow each other in serving, and how long the host needs to issue one. That is seen in the
  // first few of a row alone: before others the host waits until earlier ones are done.
  nlohmann::json Time(StepBatch batch, int repeats, int steps_to_issue) {
    Ok(stage_->Forward(TakeNewBlocks(batch)));
    const auto step = [&] { Ok(stage_->Forward(batch)); };
    for (int i = 0; i < 3; ++i) step();  // chosen, recorded, replayed
    backend_.Synchronize();
    const double begin = Seconds();
    for (int i = 0; i < steps_to_issue; ++i) step();
    const double issue_seconds = (Seconds() - begin) / steps_to_issue;
    backend_.Synchronize();
    return {{"seconds", MeanSeconds(repeats, step)}, {"issue_seconds", issue_seconds}};
  }

  template <typename Step>
  double MeanSeconds(int repeats, const Step& step) {
    const double begin = Seconds();
    for (int i = 0; i < repeats; ++i) step();
    backend_.Synchronize();
    return (Seconds() - begin) / repeats;
  }

  bool is_fp8() const { return options_.quantize == "fp8"; }
  // The least that the arithmetic takes: attention is bf16 whatever weights are.
  double ArithmeticSeconds(const StepCost& cost, const DeviceLimits& limits) const {
    return cost.product_flops / (is_fp8() ? limits.fp8_flops_per_s : limits.bf16_flops_per_s) +
           cost.attention_flops / limits.bf16_flops_per_s;
  }

  nlohmann::json Decode(int64_t seqs, const DeviceLimits& limits) {
    Log(fmt::format("decode of {} sequences at context {}", seqs, options_.context));
    const UniformBatch decodes = {seqs, options_.context, 1, kBlockSize, config_.vocab_size};
    nlohmann::json result = Time(MakeUniformBatch(decodes), options_.repeats, kDecodesToIssue);
    const StepWork work = {seqs, seqs, seqs * options_.context, seqs * options_.context};
    const StepCost cost = CostOfStep(config_, work, is_fp8() ? 1 : 2);
    const double seconds = result["seconds"];
    result["sequences"] = seqs;
    result["context"] = options_.context;
    result["tokens_per_s"] = static_cast<double>(seqs) / seconds;
    result["bytes"] = cost.bytes;
    result["gb_per_s"] = 1e-9 * cost.bytes / seconds;
    result["share_of_floor"] = Floor(cost.bytes, ArithmeticSeconds(cost, limits), limits) / seconds;
    if (seqs > stage_->max_device_logits_rows()) return result;
    result["with_both"] = WithBoth(decodes);
    AddShare(result["with_both"], seqs, cost, limits);
    return result;
  }

  // One sequence's token and its guesses, beside the token alone.
  nlohmann::json Guess(int64_t guesses) {
    Log(fmt::format("a token and {} guesses at context {}", guesses, options_.context));
    UniformBatch batch = {1, options_.context, 1, kBlockSize, config_.vocab_size};
    const double alone =
        Time(MakeUniformBatch(batch), options_.repeats, kDecodesToIssue)["seconds"];
    batch.new_tokens += guesses;
    batch.wants_all_logits = true;
    nlohmann::json result = Time(MakeUniformBatch(batch), options_.repeats, kDecodesToIssue);
    result["guesses"] = guesses;
    result["context"] = options_.context;
    result["steps_of_one_token"] = result["seconds"].get<double>() / alone;
    return result;
  }

  static double Floor(double bytes, double arithmetic_seconds, const DeviceLimits& limits) {
    return std::max(bytes / limits.read_bytes_per_s, arithmetic_seconds);
  }

  // The LM head is read once, in bf16; what sampling reads is left to the share.
  void AddShare(nlohmann::json& with_both, int64_t seqs, const StepCost& cost,
                const DeviceLimits& limits) const {
    const double head = static_cast<double>(config_.vocab_size) * config_.hidden_size;
    const double bytes = cost.bytes + 2 * head;
    const double arithmetic = ArithmeticSeconds(cost, limits) +
                              2 * head * static_cast<double>(seqs) / limits.bf16_flops_per_s;
    const double seconds = with_both["step_seconds"];
    with_both["bytes"] = bytes;
    with_both["gb_per_s"] = 1e-9 * bytes / seconds;
    with_both["share_of_floor"] = Floor(bytes, arithmetic, limits) / seconds;
  }

  // Of steps with the LM head and sampling.
  nlohmann::json WithBoth(const UniformBatch& decodes) {
    const StepGaps gaps =
        Value(MeasureStepGaps(*stage_, backend_, groups_, decodes, 5 * options_.repeats));
    return {{"step_seconds", gaps.step_seconds},      {"idle_share", gaps.median_share},
            {"idle_p95_share", gaps.p95_share},       {"idle_between_share", gaps.between_share},
            {"idle_copies_share", gaps.copies_share}, {"late_share", gaps.late_share}};
  }

  nlohmann::json Prefill(const DeviceLimits& limits) {
    const int64_t tokens = options_.prefill_tokens;
    Log(fmt::format("prefill of {} tokens", tokens));
    const StepBatch batch = MakeUniformBatch({1, tokens, tokens, kBlockSize, config_.vocab_size});
    const int repeats = std::max(1, options_.repeats / 4);
    nlohmann::json result = Time(batch, repeats, kPromptsToIssue);
    result["seconds_with_head"] = MeanSeconds(repeats, [&] {
      Ok(stage_->Forward(batch));
      Value(stage_->LogitsOnDevice(0, 1));
    });
    const int64_t logits_rows =
        tokens > kMaxPaddedChunkTokens ? 1 : tokens;  // of a padded step all
    const StepWork work = {tokens, logits_rows, tokens * (tokens + 1) / 2, tokens};
    const StepCost cost = CostOfStep(config_, work, is_fp8() ? 1 : 2);
    const double seconds = result["seconds"];
    result["tokens"] = tokens;
    result["tokens_per_s"] = static_cast<double>(tokens) / seconds;
    result["tflop_per_s"] = 1e-12 * cost.flops() / seconds;
    result["share_of_products"] = ArithmeticSeconds(cost, limits) / seconds;
    return result;
  }

  const BenchOptions& options_;
  MarkingBackend& backend_;
  RankGroups groups_;
  ModelConfig config_;
  std::unique_ptr<LlamaStage> stage_;
  BenchReport& report_;
};

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

std::vector<StepSize> KernelSizes(const BenchOptions& options) {
  std::vector<StepSize> sizes;
  for (const int64_t seqs : options.decode_seqs) {
    sizes.push_back({seqs, options.context, 1, kBlockSize});
  }
  sizes.push_back({1, options.prefill_tokens, options.prefill_tokens, kBlockSize});
  if (options.long_context > 0) {
    for (const int64_t seqs : {1, 32}) sizes.push_back({seqs, options.long_context, 1, kBlockSize});
  }
  return sizes;
}

// Blocks of the model's bf16 cache.
KvCopySize CopiesOf(const ModelConfig& config, const BenchOptions& options) {
  return {.num_pieces = 2 * config.num_layers,
          .piece_bytes = 2 * kBlockSize * config.num_kv_heads * config.head_dim,
          .num_calls = options.repeats};
}

int Main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app{"Speed of the forward pass on one GPU."};
  app.add_option("--model", options.model,
                 "checkpoint directory; else weights of --shape are made up");
  app.add_option("--shape", options.shape, "of the weights made up");
  app.add_option("--scratch", options.scratch, "where they are written");
  app.add_option("--decode", options.decode_seqs, "sequences in a decode step")->delimiter(',');
  app.add_option("--guesses", options.guesses, "guessed tokens in a step of one sequence")
      ->delimiter(',');
  app.add_option("--context", options.context, "of decoding sequences, tokens")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--prefill", options.prefill_tokens, "prompt tokens in one step")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--repeats", options.repeats,
                 "steps of a measurement; of a kernel's, half as many recordings")
      ->check(CLI::Range(1, 10000));
  app.add_option("--quantize", options.quantize, "of the steps' weights: none or fp8")
      ->check(CLI::IsMember({"none", "fp8"}));
  app.add_flag("--deterministic", options.deterministic, "of lockstep serve");
  app.add_flag("!--no-overlap", options.overlap,
               "kernels begin only when those before them have ended");
  app.add_option("--long-context", options.long_context,
                 "of the kernels of 1 and 32 sequences that are measured as well; 0: none")
      ->check(CLI::Range(0, 1 << 20));
  app.add_option(
         "--rotate", options.rotated_mib,
         "MiB of copies of a kernel's weights or cache that take turns, more than caches hold")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--json", options.json, "file for what was measured, kept as far as it has come");
  app.add_option("--compare", options.compare, "such a file, to compare the steps' times with");
  CLI11_PARSE(app, argc, argv);

  const DeviceLimits limits = MeasureDeviceLimits(0);
  const auto backend = Value(MarkingBackend::Create({.device = 0,
                                                     .compute = DType::kBF16,
                                                     .deterministic = options.deterministic,
                                                     .overlap_kernels = options.overlap,
                                                     .notice = Log}));
  BenchReport report(options.json);
  report.AddDevice(backend->Description(), limits);
  ModelConfig config;
  {
    StepBench steps(options, MakeModel(options), *backend, report);
    config = steps.config();
    steps.Run(limits);
  }
  report.AddKvCopies(MeasureKvCopies(*backend, CopiesOf(config, options), limits));
  if (!options.compare.empty()) report.CompareWith(options.compare);
  KernelInputs inputs(*backend, options.rotated_mib << 20);
  for (const StepSize& size : KernelSizes(options)) {
    TimeKernels({*backend, inputs, config, *QuantizationOf(options.quantize),
                 (options.repeats + 1) / 2, limits, report},
                size);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
