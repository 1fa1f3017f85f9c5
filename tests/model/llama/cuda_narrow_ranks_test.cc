// Several processes in bf16 and fp8, over heads of 128: attention on tensor cores, products of few
// rows and of many, rows gathered in e4m3. With --deterministic stages change no bit of what one
// process computes. Otherwise, and between tensor parallel sizes, which add up in other orders and,
// in fp8, quantize other parts, every row of logits is as near as rounding leaves it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_backend.h"
#include "nlohmann/json.hpp"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/model/llama/cuda_ranks.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

using ::testing::Each;

constexpr int64_t kHidden = 128;
constexpr int64_t kMaxTokens = 96;
constexpr int64_t kMaxSeqs = 4;
constexpr int kChunk = 70;

ModelConfig Config() {
  ModelConfig config;
  config.hidden_size = kHidden;
  config.intermediate_size = 256;
  config.num_layers = 2;
  config.num_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 128;
  config.vocab_size = 515;
  config.max_position_embeddings = 512;
  return config;
}

// Steps of 93 rows, more than our own products take, of 22, and of 3, the decodes.
std::vector<Request> Requests() {
  std::vector<Request> requests(3, Request{.prompt = {}, .num_greedy = 5});
  int32_t token = 1;
  for (const auto& [request, length] :
       {std::pair(0, kChunk + 20), std::pair(1, 3), std::pair(2, 20)}) {
    for (int i = 0; i < length; ++i) requests[request].prompt.push_back(token = token * 37 % 509);
  }
  return requests;
}

struct NarrowLayout {
  int tp = 1;
  int pp = 1;
  bool fp8 = false;
  bool deterministic = false;
  bool divided = false;  // all steps over the ranks' tokens
};

// A job of ranks: the layout and, beside it, files.
struct Job {
  NarrowLayout layout;
  std::string model;      // directory
  std::string reference;  // what one process computes, likewise: written by it, read by others
  std::string bf16;       // and in bf16, with --deterministic

  std::string Argument() const {
    return absl::StrCat(layout.tp, ",", layout.pp, ",", layout.fp8, ",", layout.deterministic, ",",
                        layout.divided, ",", model, ",", reference, ",", bf16);
  }
  static Job Parse(const std::string& argument) {
    const std::vector<std::string> parts = absl::StrSplit(argument, ',');
    return {{std::stoi(parts[0]), std::stoi(parts[1]), parts[2] == "1", parts[3] == "1",
             parts[4] == "1"},
            parts[5],
            parts[6],
            parts[7]};
  }
};

void Write(const std::vector<Outcome>& outcomes, const std::string& path) {
  nlohmann::json all;
  for (const Outcome& outcome : outcomes) {
    all.push_back({{"greedy", outcome.greedy}, {"logits", outcome.logits}});
  }
  std::ofstream(path) << all;
}
std::vector<Outcome> Read(const std::string& path) {
  std::ifstream file(path);
  std::vector<Outcome> outcomes;
  for (const auto& one : nlohmann::json::parse(file)) {
    outcomes.push_back({one.at("greedy"), one.at("logits")});
  }
  return outcomes;
}

// Of rows of logits, Euclidean distances over lengths: the farthest row's, and all rows' mean. Of
// rows before which both saw the same tokens: from where one chose another token on, which nearly
// equal logits may make it do, they saw others.
struct Nearness {
  double farthest = 0;
  double mean = 0;
  int num_same_tokens = 0;
};
Nearness Compare(const std::vector<Outcome>& got, const std::vector<Outcome>& want) {
  const std::vector<Request> requests = Requests();
  Nearness near;
  size_t num_rows = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const auto other = std::mismatch(got[i].greedy.begin(), got[i].greedy.end(),
                                     want[i].greedy.begin(), want[i].greedy.end());
    const auto num_alike = static_cast<size_t>(other.first - got[i].greedy.begin());
    near.num_same_tokens += static_cast<int>(num_alike);
    const size_t rows = std::min(want[i].logits.size(), requests[i].prompt.size() + num_alike);
    for (size_t row = 0; row < rows; ++row, ++num_rows) {
      double difference = 0;
      double length = 0;
      for (size_t v = 0; v < want[i].logits[row].size(); ++v) {
        difference += std::pow(got[i].logits[row][v] - want[i].logits[row][v], 2);
        length += std::pow(want[i].logits[row][v], 2);
      }
      const double distance = std::sqrt(difference / length);
      near.farthest = std::max(near.farthest, distance);
      near.mean += distance;
    }
  }
  near.mean /= static_cast<double>(num_rows);
  return near;
}

// In fp8, of any layout, they are about as far from bf16's as those of one process are: a wrong row
// or part is as far as logits are long.
void ExpectNear(const std::vector<Outcome>& outcomes, const Job& job) {
  const std::vector<Outcome> bf16 = Read(job.bf16);
  const Nearness near = Compare(outcomes, bf16);
  Nearness allowed = {.farthest = 0.02, .mean = 0.005};
  if (job.layout.fp8) {
    allowed = Compare(Read(job.reference), bf16);
    allowed.farthest *= 1.5;
    allowed.mean *= 1.25;
  }
  EXPECT_LT(near.farthest, allowed.farthest);
  EXPECT_LT(near.mean, allowed.mean);
  EXPECT_LT(allowed.farthest, 0.6);
  if (!job.layout.fp8) {
    EXPECT_GT(near.num_same_tokens, 3);  // decodes were compared
  }
}

void ExpectReference(const std::vector<Outcome>& outcomes, const Job& job) {
  if (job.layout.deterministic && job.layout.tp == 1) {
    EXPECT_TRUE(SameBits(outcomes, Read(job.reference)));
  } else {
    ExpectNear(outcomes, job);
  }
}

DriveOptions Options(const LocalRank& rank, const NarrowLayout& layout) {
  DriveOptions options;
  options.make_backend =
      BackendsOf(rank, {.compute = DType::kBF16, .deterministic = layout.deterministic});
  options.make_device_groups = [](Backend& backend, RankGroups& host) {
    return OverDevices(backend, host, kMaxTokens * kHidden, kMaxSeqs);
  };
  options.stage.weights = StageOptions::Weights::kBF16;
  if (layout.fp8) options.stage.quantize = Quantization::kFp8;
  options.stage.limits = {
      .max_batched_tokens = kMaxTokens, .max_num_seqs = kMaxSeqs, .max_model_len = 96};
  options.chunk = kChunk;
  if (layout.divided) options.most_undivided_bytes = 0;
  return options;
}

class CudaNarrowRanksTest : public ::testing::TestWithParam<NarrowLayout> {
 protected:
  static void SetUpTestSuite() {
    model_ = new TemporaryModel(Config(), DType::kBF16, /*deviation=*/0.07f);
    references_ = new TempDirectory();
  }
  static void TearDownTestSuite() {
    delete model_;
    delete references_;
    model_ = nullptr;
    references_ = nullptr;
  }

  static void Run(const Job& job) {
    const int num_ranks = job.layout.tp * job.layout.pp;
    ASSERT_THAT(RunLocalRanks({num_ranks, "narrow", job.Argument()}), Each(0));
  }

  // Of one process, computed when it is first asked for.
  static std::string Reference(bool fp8, bool deterministic) {
    const std::string path = *references_ / absl::StrCat(fp8, deterministic);
    if (!std::filesystem::exists(path)) {
      Run({.layout = {1, 1, fp8, deterministic},
           .model = model_->directory(),
           .reference = path,
           .bf16 = ""});
    }
    return path;
  }

  static TemporaryModel* model_;
  static TempDirectory* references_;
};
TemporaryModel* CudaNarrowRanksTest::model_ = nullptr;
TempDirectory* CudaNarrowRanksTest::references_ = nullptr;

TEST_P(CudaNarrowRanksTest, LogitsAreThoseOfOneProcess) {
  const NarrowLayout& layout = GetParam();
  if (layout.fp8) SKIP_WITHOUT_FP8();
  Run({.layout = layout,
       .model = model_->directory(),
       .reference = Reference(layout.fp8, layout.deterministic),
       .bf16 = Reference(/*fp8=*/false, /*deterministic=*/true)});
}

// On the emulation most without the measurements that choose products' algorithms: those take it
// long.
std::vector<NarrowLayout> Layouts() {
#ifdef LOCKSTEP_CUDA_EMULATION
  constexpr bool kDeterministic = true;
#else
  constexpr bool kDeterministic = false;
#endif
  std::vector<NarrowLayout> layouts;
  for (const bool fp8 : {false, true}) {
    layouts.push_back({2, 1, fp8, kDeterministic});
    layouts.push_back({4, 1, fp8, kDeterministic});
    layouts.push_back({1, 2, fp8, true});
    layouts.push_back({2, 1, fp8, kDeterministic && !fp8, /*divided=*/true});
  }
  return layouts;
}

std::string Name(const NarrowLayout& layout) {
  return absl::StrCat(layout.fp8 ? "Fp8" : "Bf16", "Tp", layout.tp, "Pp", layout.pp,
                      layout.deterministic ? "Deterministic" : "", layout.divided ? "Divided" : "");
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaNarrowRanksTest, ::testing::ValuesIn(Layouts()),
                         [](const auto& info) { return Name(info.param); });

}  // namespace

// argument: a Job.
absl::Status GenerateInNarrowTypes(const LocalRank& rank) {
  const Job job = Job::Parse(rank.argument);
  const ProcessGrid grid = *ProcessGrid::Create(job.layout.tp, job.layout.pp);
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(job.model));
  RankGroups host = rank.Groups(grid);
  ASSIGN_OR_RETURN(
      const std::vector<Outcome> outcomes,
      DriveRank(*checkpoint, grid, rank.rank, host, Options(rank, job.layout), Requests()));
  if (grid.stage_of(rank.rank) != grid.pp() - 1) return absl::OkStatus();  // has no logits
  if (rank.size == 1) {
    Write(outcomes, job.reference);
  } else {
    ExpectReference(outcomes, job);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::testing
