// Speed of the forward pass on this machine: one configuration of ranks and threads per run.
//
//   mpirun -n TP model_bench --model DIR --tp TP --threads K
//
// Prefill is bound by arithmetic: tokens/s, FLOP/s and its share of the multiply-add peak.
// Decode is bound by reading weights and cache: tokens/s, GB/s and its share of the read bandwidth.
// Both limits are measured by the same ranks and threads in the same run: the peak before and
// after, of which the larger is taken, the bandwidth by turns with the decode steps, as neighbours
// change it within seconds. tests/bench/model_bench.sh runs the usual configurations.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/cpu_backend_options.h"
#include "model/checkpoint/shard_sizes.h"
#include "model/llama/llama_stage.h"
#include "model/llama/stage_kv_cache.h"
#include "model/llama/uniform_batch.h"
#include "model/llama/weights.h"
#include "nlohmann/json.hpp"
#include "parallel/mpi_communicator.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/step_cost.h"
#include "tests/bench/timing.h"

namespace lockstep {
namespace {

using bench::Median;
using bench::Seconds;

struct BenchOptions {
  std::string model;
  int tp = 1;
  int threads = 1;
  std::vector<int64_t> prefill_tokens = {512};
  int64_t context = 256;
  std::vector<int64_t> decode_seqs = {1, 16};
  std::vector<int64_t> guesses = {8};
  int repeats = 5;
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string quantize = "none";
  bool json = false;
};

int64_t Largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  LS_CHECK(value.ok()) << value.status();
  return *std::move(value);
}

void Ok(const absl::Status& status) { LS_CHECK(status.ok()) << status; }

class ModelBench {
 public:
  ModelBench(const BenchOptions& options, const ProcessGrid& grid, int rank, RankGroups& groups)
      : options_(options), groups_(groups), rank_(rank) {
    backend_ = Value(MakeCpuBackend({.num_threads = options.threads}));
    probe_ = std::make_unique<bench::ReadProbe>(options.threads);
    auto checkpoint = Value(Checkpoint::Open(options.model));
    config_ = checkpoint->config();
    const int64_t most_seqs = Largest(options.decode_seqs);
    const int64_t most_tokens = Largest(options.prefill_tokens);
    StageOptions stage;
    stage.weights = *WeightDTypeOf(options.dtype);
    dtype_ = Value(AttentionDType(*checkpoint, stage.weights, backend_->HoldsF16()));
    stage.kv_cache = *KvDTypeOf(options.kv_cache_dtype);
    kv_dtype_ =
        Value(KvCacheDType(*checkpoint, stage.weights, stage.kv_cache, backend_->HoldsF16()));
    stage.quantize = *QuantizationOf(options.quantize);
    stage.num_load_threads = options.threads;
    stage.limits.max_batched_tokens =
        std::max({most_tokens, most_seqs, 1 + Largest(options.guesses)});
    stage.limits.max_num_seqs = most_seqs;
    stage.limits.max_model_len = std::max(most_tokens, options.context) + 1;
    stage.limits.block_size = kBlockSize;
    Log(fmt::format("loading {}", options.model));
    const double start = Seconds();
    stage_ = Value(LlamaStage::Load(*checkpoint, grid, rank, *backend_, groups, stage, {}));
    load_seconds_ = Seconds() - start;
    const int64_t blocks =
        std::max(most_seqs * (options.context / kBlockSize + 1), most_tokens / kBlockSize + 1);
    Ok(stage_->AllocateKvCache(blocks));
  }

  nlohmann::json Run() {
    nlohmann::json report;
    report["tp"] = options_.tp;
    report["threads"] = options_.threads;
    report["backend"] = backend_->Description();
    report["load_seconds"] = load_seconds_;
    report["load_gb_per_s"] = stage_->load_stats().loaded_bytes * 1e-9 / load_seconds_;
    MeasurePeak();
    for (const int64_t tokens : options_.prefill_tokens) {
      report["prefill"].push_back(Prefill(tokens));
    }
    for (const int64_t seqs : options_.decode_seqs) report["decode"].push_back(Decode(seqs));
    for (const int64_t guesses : options_.guesses) report["guesses"].push_back(Guess(guesses));
    MeasurePeak();
    AddShares(report);
    return report;
  }

 private:
  static constexpr int kBlockSize = 16;
  static constexpr float kMinSeconds = 1.5f;  // of a case, for neighbours come and go
  static constexpr int kMinTurns = 7;

  void Log(const std::string& line) {
    if (rank_ == 0) fmt::print(stderr, "model_bench: {}\n", line);
  }

  // All ranks at once, as in the measured steps; summed over ranks.
  void MeasurePeak() {
    Ok(groups_.tp->Barrier());
    peak_gflop_per_s_ =
        std::max<double>(peak_gflop_per_s_, AddUp(static_cast<float>(Peak() * 1e-9)));
  }
  double ReadGbPerSecond() {
    Ok(groups_.tp->Barrier());
    return AddUp(static_cast<float>(probe_->Bandwidth(2) * 1e-9));
  }

  bool kept_as_f32() const { return dtype_ == DType::kF32; }
  double Peak() const {
    return kept_as_f32() ? bench::FmaPeak(options_.threads) : bench::Bf16Peak(options_.threads);
  }

  float AddUp(float value) {
    Ok(groups_.tp->AllReduceSum(&value, 1));
    return value;
  }

  // Of one step, until min_seconds have passed.
  double MedianSeconds(StepBatch batch, int min_repeats, float min_seconds) {
    Ok(stage_->Forward(TakeNewBlocks(batch)));
    std::vector<double> seconds;
    float spent = 0;  // rank 0's, so that all ranks stop together
    for (int repeat = -1; repeat < min_repeats || spent < min_seconds; ++repeat) {
      Ok(groups_.tp->Barrier());
      const double start = Seconds();
      Ok(stage_->Forward(batch));
      Value(stage_->Logits(0, static_cast<int64_t>(batch.logits_rows.size())));
      Ok(groups_.tp->Barrier());
      if (repeat >= 0) seconds.push_back(Seconds() - start);  // the first warms up
      const float own = rank_ == 0 ? static_cast<float>(Seconds() - start) : 0.0f;
      spent += AddUp(own);
    }
    return Median(seconds);
  }

  // Of a step and the LM head; attention over `mean_context` positions for each token.
  double Flops(int64_t tokens, int64_t mean_context, int64_t logits_rows) const {
    const bench::StepWork work = {tokens, logits_rows, tokens * mean_context, /*cached=*/0};
    const double head = static_cast<double>(config_.vocab_size) * config_.hidden_size;
    return bench::CostOfStep(config_, work, /*weight_bytes=*/0).flops() + 2.0 * logits_rows * head;
  }

  nlohmann::json Prefill(int64_t tokens) {
    Log(fmt::format("prefill of {} tokens", tokens));
    const double seconds =
        MedianSeconds(MakeUniformBatch({1, tokens, tokens, kBlockSize, config_.vocab_size}),
                      options_.repeats, kMinSeconds);
    return {{"tokens", tokens},
            {"seconds", seconds},
            {"tokens_per_s", tokens / seconds},
            {"gflop_per_s", Flops(tokens, tokens / 2, 1) * 1e-9 / seconds}};
  }

  nlohmann::json Decode(int64_t seqs) {
    Log(fmt::format("decode of {} sequences at context {}", seqs, options_.context));
    const StepBatch batch =
        MakeUniformBatch({seqs, options_.context, 1, kBlockSize, config_.vocab_size});
    std::vector<double> turns, limits, shares;
    const double bytes = DecodeBytes(seqs);
    double before = ReadGbPerSecond();
    for (int turn = 0; turn < std::max(kMinTurns, options_.repeats); ++turn) {
      turns.push_back(MedianSeconds(batch, 1, kMinSeconds / kMinTurns));
      const double after = ReadGbPerSecond();
      limits.push_back((before + after) / 2);
      shares.push_back(bytes * 1e-9 / turns.back() / limits.back());
      before = after;
    }
    const double seconds = Median(turns);
    return {{"sequences", seqs},
            {"context", options_.context},
            {"seconds", seconds},
            {"tokens_per_s", seqs / seconds},
            {"gb_per_s", bytes * 1e-9 / seconds},
            {"read_gb_per_s", Median(limits)},
            {"share_of_bandwidth", Median(shares)}};
  }

  // One sequence's token and its guesses, with a choice after each, by turns with the token alone.
  nlohmann::json Guess(int64_t guesses) {
    Log(fmt::format("a token and {} guesses at context {}", guesses, options_.context));
    const UniformBatch alone = {1, options_.context, 1, kBlockSize, config_.vocab_size};
    UniformBatch guessed = alone;
    guessed.new_tokens += guesses;
    guessed.wants_all_logits = true;
    std::vector<double> turns, ratios;
    for (int turn = 0; turn < std::max(kMinTurns, options_.repeats); ++turn) {
      const double one = MedianSeconds(MakeUniformBatch(alone), 1, kMinSeconds / kMinTurns / 2);
      turns.push_back(MedianSeconds(MakeUniformBatch(guessed), 1, kMinSeconds / kMinTurns / 2));
      ratios.push_back(turns.back() / one);
    }
    return {{"guesses", guesses},
            {"context", options_.context},
            {"seconds", Median(turns)},
            {"steps_of_one_token", Median(ratios)}};
  }

  // Read by one step of all ranks.
  double DecodeBytes(int64_t seqs) const {
    const int64_t element = kept_as_f32() ? 4 : 2;
    const int64_t kv_bytes = KvBytesPerToken(config_, kv_dtype_) * options_.context * seqs;
    const double head = static_cast<double>(config_.vocab_size) * config_.hidden_size;
    if (options_.quantize == "none") {
      return (config_.num_parameters() - (config_.tie_word_embeddings ? 0 : head)) *
                 static_cast<double>(element) +
             kv_bytes;
    }
    // All but the embedding table, of which a row per token is read.
    return static_cast<double>(options_.tp * stage_->load_stats().weight_bytes + kv_bytes) -
           head * static_cast<double>(element);
  }

  void AddShares(nlohmann::json& report) const {
    report["peak_gflop_per_s"] = peak_gflop_per_s_;
    for (nlohmann::json& prefill : report["prefill"]) {
      prefill["share_of_peak"] = prefill["gflop_per_s"].get<double>() / peak_gflop_per_s_;
    }
  }

  const BenchOptions& options_;
  RankGroups& groups_;
  const int rank_;
  ModelConfig config_;
  std::unique_ptr<bench::ReadProbe> probe_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<LlamaStage> stage_;
  DType dtype_ = DType::kF32;  // of attention's weights
  DType kv_dtype_ = DType::kF32;
  double load_seconds_ = 0;
  double peak_gflop_per_s_ = 0;
};

void PrintTable(const nlohmann::json& report) {
  fmt::print("tp {} x {} threads ({}): peak {:.0f} GFLOP/s; loaded in {:.1f} s\n",
             report["tp"].get<int>(), report["threads"].get<int>(),
             report["backend"].get<std::string>(), report["peak_gflop_per_s"].get<double>(),
             report["load_seconds"].get<double>());
  for (const nlohmann::json& prefill : report["prefill"]) {
    fmt::print("  prefill {:5} tokens      {:8.1f} tokens/s  {:7.1f} GFLOP/s  {:5.1f} % of peak\n",
               prefill["tokens"].get<int64_t>(), prefill["tokens_per_s"].get<double>(),
               prefill["gflop_per_s"].get<double>(), 100 * prefill["share_of_peak"].get<double>());
  }
  for (const nlohmann::json& decode : report["decode"]) {
    fmt::print(
        "  decode  {:5} sequences   {:8.1f} tokens/s  {:7.1f} GB/s     {:5.1f} % of the {:.1f} "
        "GB/s "
        "read beside it\n",
        decode["sequences"].get<int64_t>(), decode["tokens_per_s"].get<double>(),
        decode["gb_per_s"].get<double>(), 100 * decode["share_of_bandwidth"].get<double>(),
        decode["read_gb_per_s"].get<double>());
  }
  for (const nlohmann::json& guess : report["guesses"]) {
    fmt::print("  a token and {:2} guesses     {:8.2f} ms, {:.2f} of a token's alone\n",
               guess["guesses"].get<int64_t>(), 1e3 * guess["seconds"].get<double>(),
               guess["steps_of_one_token"].get<double>());
  }
}

int Main(int argc, char** argv) {
  MpiSession session = Value(MpiSession::Start(&argc, &argv));
  BenchOptions options;
  CLI::App app{"Speed of the forward pass: one configuration of ranks and threads."};
  app.add_option("--model", options.model, "Checkpoint directory")->required();
  app.add_option("--tp", options.tp, "Tensor parallel ranks = the MPI job's size");
  app.add_option("--threads", options.threads, "Threads per rank");
  app.add_option("--prefill", options.prefill_tokens, "Prompt tokens in one step")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  app.add_option("--decode", options.decode_seqs, "Sequences in a decode step")->delimiter(',');
  app.add_option("--guesses", options.guesses, "Guessed tokens in a step of one sequence")
      ->delimiter(',');
  app.add_option("--context", options.context, "Context of the decoding sequences, tokens")
      ->check(CLI::Range(1, 65536));
  app.add_option("--repeats", options.repeats, "Median of so many or more")
      ->check(CLI::Range(1, 1000));
  app.add_option("--dtype", options.dtype, "Weights: auto, f32 or bf16")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}));
  app.add_option("--kv-cache-dtype", options.kv_cache_dtype, "KV cache: auto or fp8")
      ->check(CLI::IsMember({"auto", "fp8"}));
  app.add_option("--quantize", options.quantize, "Matrices: none, int8 or int4")
      ->check(CLI::IsMember({"none", "int8", "int4"}));
  app.add_flag("--json", options.json, "One JSON object on stdout");
  CLI11_PARSE(app, argc, argv);

  const ProcessGrid grid = Value(ProcessGrid::Create(options.tp, 1));
  RankGroups groups = Value(MakeMpiGroups(session, grid));
  const nlohmann::json report = ModelBench(options, grid, session.rank(), groups).Run();
  if (session.rank() == 0) {
    if (options.json) {
      fmt::print("{}\n", report.dump());
    } else {
      PrintTable(report);
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
