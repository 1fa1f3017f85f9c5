// How near predictions come to public measurements that the fit never saw: the half left out, a
// GPU left out, a number of ranks left out. Needs the measurements, which are not part of the
// repository: $LOCKSTEP_SHARED/planner (default ../shared/planner); skips loudly without them.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "deploy/plan/engine_fit.h"
#include "gtest/gtest.h"
#include "tests/plan/measured_elsewhere.h"

namespace lockstep::plan {
namespace {

std::string File(const char* name) {
  const char* shared = std::getenv("LOCKSTEP_SHARED");
  const std::string root =
      shared != nullptr ? shared : std::string(LOCKSTEP_SOURCE_DIR) + "/../shared";
  return root + "/planner/" + name;
}

// The committed coefficients; benchmarks that no fit saw load steadily.
EngineFit CommittedFit(const std::string& engine, const std::vector<MeasuredCase>& cases) {
  EngineFit fit;
  fit.profile = *FindEngine(engine);
  for (const MeasuredCase& measured : cases) {
    const std::string& version = measured.measurement().engine_version;
    fit.patterns[version] = BenchmarkPattern(engine, version);
  }
  return fit;
}

class ServingAccuracy : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = File("measured_serving.csv");
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: no measurements at " << path;
    const auto rows = LoadMeasurements(path);
    ASSERT_TRUE(rows.ok()) << rows.status();
    for (const Measurement& row : *rows) {
      if (row.engine != GetParam()) continue;
      auto measured = MeasuredCase::Create(row);
      ASSERT_TRUE(measured.ok()) << measured.status();
      cases_.push_back(*std::move(measured));
    }
    ASSERT_GT(cases_.size(), 10u);
  }

  using Chooses = std::function<bool(const Measurement&)>;
  std::vector<MeasuredCase> Those(const Chooses& chooses) const {
    std::vector<MeasuredCase> out;
    for (const MeasuredCase& measured : cases_) {
      if (chooses(measured.measurement())) out.push_back(measured);
    }
    return out;
  }

  EngineFit Committed() const { return CommittedFit(GetParam(), cases_); }

  // Fits to all others and judges those chosen.
  void ExpectPredictedUnseen(const std::string& what, const Chooses& chooses) const {
    EngineProfile start;
    start.max_running = FindEngine(GetParam())->max_running;
    const EngineFit fit =
        FitEngine(start, Those([&](const Measurement& row) { return !chooses(row); }));
    const Accuracy accuracy = AccuracyOf(fit, Those(chooses));
    Print(what, accuracy);
    EXPECT_LE(accuracy.tpot_median, 0.15) << what;
  }

  void Print(const std::string& what, const Accuracy& accuracy) const {
    std::printf("%-7s %-22s n %3d  TPOT median %4.1f %% p90 %5.1f %%  TTFT median %5.1f %%\n",
                GetParam(), what.c_str(), accuracy.num_cases, 100 * accuracy.tpot_median,
                100 * accuracy.tpot_p90, 100 * accuracy.ttft_median);
  }

  std::vector<MeasuredCase> cases_;
};

TEST_P(ServingAccuracy, OfTheHalfNeverFitted) {
  const EngineFit fit = Committed();
  Print("fitted half", AccuracyOf(fit, Those([](const auto& row) { return row.in_fit_half; })));
  const Accuracy held = AccuracyOf(fit, Those([](const auto& row) { return !row.in_fit_half; }));
  Print("other half", held);
  EXPECT_LE(held.tpot_median, 0.10);
  EXPECT_LE(held.ttft_median, 0.25);
}

TEST_P(ServingAccuracy, OfAGpuNeverFitted) {
  std::set<std::string> gpus;
  for (const MeasuredCase& measured : cases_) gpus.insert(measured.measurement().gpu);
  if (gpus.size() < 2) GTEST_SKIP() << "SKIPPED: all measurements are of one GPU";
  for (const std::string& gpu : gpus) {
    ExpectPredictedUnseen("never " + gpu, [&](const auto& row) { return row.gpu == gpu; });
  }
}

TEST_P(ServingAccuracy, OfATensorParallelSizeNeverFitted) {
  for (const int tp : {1, 2, 4, 8}) {
    ExpectPredictedUnseen("never tp " + std::to_string(tp),
                          [&](const auto& row) { return row.tp == tp; });
  }
}

// A first token that takes longer than all prompts ahead of it waits for KV memory.
TEST_P(ServingAccuracy, CasesStarvedOfKvAreRecognized) {
  const EngineFit fit = Committed();
  for (const MeasuredCase& measured : cases_) {
    const Measurement& row = measured.measurement();
    const Prediction prediction =
        measured.PredictWith(fit.profile, fit.patterns.at(row.engine_version));
    if (row.ttft_ms > 5000 && row.concurrency < fit.profile.max_running) {
      EXPECT_TRUE(prediction.saturated) << row.gpu << " tp " << row.tp << " concurrency "
                                        << row.concurrency << " TTFT " << row.ttft_ms << " ms";
      EXPECT_GT(prediction.ttft_ms, 1000);
    }
  }
}

// The median over measurements of any engine of |predicted / measured - 1|, each by `times`.
double MedianErrorElsewhere(const std::vector<Measurement>& measurements, const auto& times) {
  std::vector<double> errors;
  for (const Measurement& row : measurements) {
    const std::vector<MeasuredCase> cases = {*MeasuredCase::Create(row)};
    if (row.concurrency > static_cast<double>(cases[0].max_requests())) continue;
    const EngineFit fit = CommittedFit(row.engine, cases);
    const Prediction prediction =
        cases[0].PredictWith(fit.profile, fit.patterns.at(row.engine_version));
    errors.push_back(std::abs(times(row, prediction.ttft_ms, prediction.tpot_ms) /
                                  times(row, row.ttft_ms, row.tpot_ms) -
                              1.0));
  }
  std::sort(errors.begin(), errors.end());
  std::printf("elsewhere n %2zu  median %4.1f %%  largest %5.1f %%\n", errors.size(),
              100 * errors[errors.size() / 2], 100 * errors.back());
  EXPECT_GE(errors.size(), 10u);
  return errors[errors.size() / 2];
}

TEST(AccuracyElsewhere, TpotOfModelsWithExperts) {
  EXPECT_LE(MedianErrorElsewhere(kMeasuredExperts,
                                 [](const auto&, double, double tpot_ms) { return tpot_ms; }),
            0.20);
}

// Benchmarks differ in how much of a request's time they spend before the first token.
TEST(AccuracyElsewhere, WholeRequestsOfDenseModels) {
  EXPECT_LE(MedianErrorElsewhere(kMeasuredDense,
                                 [](const Measurement& row, double ttft_ms, double tpot_ms) {
                                   return ttft_ms + (row.output_tokens - 1) * tpot_ms;
                                 }),
            0.10);
}

INSTANTIATE_TEST_SUITE_P(Engines, ServingAccuracy, ::testing::Values("vllm", "trtllm", "sglang"));

TEST(AllReduceAccuracy, MedianIsWithinAFifthOfEveryMeasuredLink) {
  const std::string path = File("measured_collectives.csv");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "SKIPPED: no measurements at " << path;
  const auto rows = LoadAllReduces(path);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::map<std::string, const char*> gpus = {
      {"NVLink 3", "a100"}, {"NVLink 4", "h100"}, {"NVLink 5", "b200"}};
  std::map<std::string, std::vector<double>> errors;
  for (const MeasuredAllReduce& row : *rows) {
    const Interconnect net = InterconnectOf(*FindGpu(gpus.at(row.link)), 8);
    errors[row.link].push_back(
        std::abs(AllReduceSeconds(net, row.ranks, row.bytes) / row.seconds - 1.0));
  }
  for (auto& [link, values] : errors) {
    std::sort(values.begin(), values.end());
    std::printf("%s all-reduce: n %3zu  median %4.1f %%  p90 %4.1f %%\n", link.c_str(),
                values.size(), 100 * values[values.size() / 2],
                100 * values[values.size() * 9 / 10]);
    EXPECT_LE(values[values.size() / 2], 0.20) << link;
  }
}

}  // namespace
}  // namespace lockstep::plan
