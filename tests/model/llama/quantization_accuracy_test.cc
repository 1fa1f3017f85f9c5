// What 8- and 4-bit weights and an 8-bit KV cache cost in accuracy: logits and greedy tokens of a
// real trained model against those of its f32 weights. Prints the table that kernels/README.md
// shows.
#include <cmath>
#include <cstdio>
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/model/llama/stage_driver.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

struct Accuracy {
  double rms_error = 0;       // of logits, relative to the root mean square of their deviation
  double max_error = 0;       // likewise
  double top1_agreement = 0;  // share of positions whose likeliest token is the same
  size_t greedy_prefix = 0;   // tokens until the first difference, over all requests
  size_t greedy_tokens = 0;
};

size_t Likeliest(const std::vector<float>& logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Both ran over the same tokens: logits of the prompts alone are compared.
Accuracy Compare(const std::vector<Request>& requests, const std::vector<Outcome>& exact,
                 const std::vector<Outcome>& other) {
  Accuracy accuracy;
  double squares = 0, deviations = 0, most = 0;
  size_t positions = 0, agreements = 0, count = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t t = 0; t < requests[i].prompt.size(); ++t) {
      const std::vector<float>& want = exact[i].logits[t];
      const std::vector<float>& got = other[i].logits[t];
      double mean = 0;
      for (const float logit : want) mean += logit / static_cast<double>(want.size());
      for (size_t v = 0; v < want.size(); ++v) {
        const double error = static_cast<double>(got[v]) - want[v];
        squares += error * error;
        deviations += (want[v] - mean) * (want[v] - mean);
        most = std::max(most, std::abs(error));
        ++count;
      }
      agreements += Likeliest(want) == Likeliest(got) ? 1 : 0;
      ++positions;
    }
    size_t same = 0;
    while (same < exact[i].greedy.size() && exact[i].greedy[same] == other[i].greedy[same]) ++same;
    accuracy.greedy_prefix += same;
    accuracy.greedy_tokens += exact[i].greedy.size();
  }
  const double deviation = std::sqrt(deviations / static_cast<double>(count));
  accuracy.rms_error = std::sqrt(squares / static_cast<double>(count)) / deviation;
  accuracy.max_error = most / deviation;
  accuracy.top1_agreement = static_cast<double>(agreements) / static_cast<double>(positions);
  return accuracy;
}

// The golden prompts, and as prompts the text that the model itself writes.
std::vector<Request> Requests(const std::filesystem::path& directory) {
  std::ifstream file(directory / "golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  std::vector<Request> requests;
  for (const auto& c : golden.at("cases")) {
    const std::vector<int32_t> prompt = c.at("prompt");
    const std::vector<int32_t> greedy = c.at("greedy_tokens");
    requests.push_back({prompt, 64});
    requests.push_back({prompt, 0});
    requests.back().prompt.insert(requests.back().prompt.end(), greedy.begin(), greedy.end());
  }
  return requests;
}

TEST(QuantizationAccuracyTest, OfATrainedModel) {
  const std::filesystem::path directory = SharedAssets() / "models" / "stories260K";
  SKIP_WITHOUT_ASSET(directory);
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<Request> requests = Requests(directory);
  const auto run = [&](WeightDType weights, Quantization quantize, KvDType kv_cache) {
    DriveOptions options;
    options.make_backend = CpuBackends(1);
    options.stage.weights = weights;
    options.stage.quantize = quantize;
    options.stage.kv_cache = kv_cache;
    options.stage.limits = {.max_batched_tokens = 256, .max_num_seqs = 64, .max_model_len = 512};
    auto outcomes = Drive(**checkpoint, options, requests);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return *std::move(outcomes);
  };
  const std::vector<Outcome> exact = run(WeightDType::kF32, Quantization::kNone, KvDType::kAuto);
  struct Row {
    const char* name;
    WeightDType weights;
    Quantization quantize;
    double most_rms_error;
    double least_agreement;
    KvDType kv_cache = KvDType::kAuto;
  };
  std::printf("%-9s %10s %10s %16s %14s\n", "", "RMS error", "max error", "same top token",
              "greedy prefix");
  for (const Row& row :
       {Row{"bf16", WeightDType::kBF16, Quantization::kNone, 0.01, 0.98},
        {"int8", WeightDType::kF32, Quantization::kInt8, 0.02, 0.97},
        {"int4", WeightDType::kF32, Quantization::kInt4, 0.25, 0.80},
        {"fp8 cache", WeightDType::kF32, Quantization::kNone, 0.1, 0.9, KvDType::kFp8}}) {
    const Accuracy accuracy =
        Compare(requests, exact, run(row.weights, row.quantize, row.kv_cache));
    std::printf("%-9s %9.2f%% %9.2f%% %15.1f%% %7zu of %zu\n", row.name, 100 * accuracy.rms_error,
                100 * accuracy.max_error, 100 * accuracy.top1_agreement, accuracy.greedy_prefix,
                accuracy.greedy_tokens);
    EXPECT_LT(accuracy.rms_error, row.most_rms_error) << row.name;
    EXPECT_GT(accuracy.top1_agreement, row.least_agreement) << row.name;
  }
}

}  // namespace
}  // namespace lockstep::testing
