// The same request gives the same bits under every chunking, batch mix, block layout, thread count
// and TP x PP layout.
#include <map>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

using Weights = StageOptions::Weights;

struct Model {
  const char* name;
  Weights weights;
  Quantization quantize = Quantization::kNone;
  KvDType kv_cache = KvDType::kAuto;
};

std::vector<int32_t> RandomTokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 500);
  return tokens;
}

// Prompts of 1, 3, 33 and 150 tokens: one more than a split of attention in all, shorter and longer
// than chunks.
std::vector<Request> MixedRequests() {
  return {{RandomTokens(150, 1), 4},
          {RandomTokens(1, 2), 9},
          {RandomTokens(33, 3), 6},
          {RandomTokens(3, 4), 12}};
}

class InvarianceTest : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    const std::filesystem::path directory = SharedAssets() / "models" / GetParam().name;
    SKIP_WITHOUT_ASSET(directory);
    auto checkpoint = Checkpoint::Open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    options_.make_backend = CpuBackends(1);
    options_.stage.weights = GetParam().weights;
    options_.stage.quantize = GetParam().quantize;
    options_.stage.kv_cache = GetParam().kv_cache;
    options_.stage.limits = {.max_batched_tokens = 256, .max_num_seqs = 8, .max_model_len = 200};
    expected_ = Drive({});
  }

  std::vector<Outcome> Drive(const std::function<void(DriveOptions&)>& change,
                             const std::vector<Request>& requests = MixedRequests()) {
    DriveOptions options = options_;
    if (change != nullptr) change(options);
    auto outcomes = testing::Drive(*checkpoint_, options, requests);
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.ok() ? *std::move(outcomes) : std::vector<Outcome>{};
  }
  void ExpectSameBits(const std::function<void(DriveOptions&)>& change) {
    EXPECT_TRUE(SameBits(Drive(change), expected_));
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  DriveOptions options_;
  std::vector<Outcome> expected_;
};

TEST_P(InvarianceTest, ChunkSize) {
  for (const int64_t chunk : {1, 3, 16, 64, 256}) {
    SCOPED_TRACE(chunk);
    ExpectSameBits([&](DriveOptions& o) { o.chunk = chunk; });
  }
}

TEST_P(InvarianceTest, WhoElseIsInTheBatch) {
  ExpectSameBits([](DriveOptions& o) { o.staggered = true; });
  const std::vector<Request> requests = MixedRequests();
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(SameBits(Drive({}, {requests[i]}), {expected_[i]})) << "request " << i << " alone";
  }
}

TEST_P(InvarianceTest, TokenBudget) {
  ExpectSameBits([](DriveOptions& o) { o.stage.limits.max_batched_tokens = 17; });
}

TEST_P(InvarianceTest, BlockSizeAndPlacement) {
  for (const int block_size : {1, 4, 16}) {
    SCOPED_TRACE(block_size);
    ExpectSameBits([&](DriveOptions& o) {
      o.stage.limits.block_size = block_size;
      o.block_seed = 77;
    });
  }
}

TEST_P(InvarianceTest, ThreadsPerRank) {
  for (const int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    ExpectSameBits([&](DriveOptions& o) { o.make_backend = CpuBackends(threads); });
  }
}

TEST_P(InvarianceTest, Layout) {
  for (const int tp : {1, 2, 4}) {
    for (const int pp : {1, 2, 4, 5}) {
      if (pp > checkpoint_->config().num_layers) continue;
      SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << pp);
      ExpectSameBits([&](DriveOptions& o) {
        o.tp = tp;
        o.pp = pp;
        o.staggered = pp % 2 == 0;
      });
    }
  }
}

TEST_P(InvarianceTest, HiddenStatesInSlices) {
  for (const auto& [tp, pp] : {std::pair(2, 2), {4, 2}, {4, 3}}) {
    SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << pp);
    ExpectSameBits([&](DriveOptions& o) {
      o.tp = tp;
      o.pp = pp;
      o.staggered = true;
      o.stages_lie_apart = true;
    });
  }
}

// All steps, or those of more than seven tokens of the smaller model.
TEST_P(InvarianceTest, DividedTokens) {
  for (const auto& [tp, pp] : {std::pair(2, 1), {2, 2}, {4, 1}, {4, 3}}) {
    for (const int64_t most_undivided_bytes : {0, 7 * 64 * 4}) {
      SCOPED_TRACE(::testing::Message()
                   << "tp " << tp << " pp " << pp << " above " << most_undivided_bytes << " bytes");
      ExpectSameBits([&](DriveOptions& o) {
        o.tp = tp;
        o.pp = pp;
        o.staggered = true;
        o.stages_lie_apart = pp == 2;
        o.most_undivided_bytes = most_undivided_bytes;
      });
    }
  }
}

// Tokens without logits leave the last layer early: with nobody, one or a few left, and divided.
TEST_P(InvarianceTest, OnlyNeededLogits) {
  const std::vector<Outcome> needed = OfNeededLogits(expected_);
  for (const auto& [tp, pp] : {std::pair(1, 1), {2, 2}, {4, 1}}) {
    for (const int64_t chunk : {16, 256}) {
      for (const bool is_divided : {false, true}) {
        SCOPED_TRACE(::testing::Message() << "tp " << tp << " pp " << pp << " chunk " << chunk
                                          << (is_divided ? ", divided" : ""));
        const auto outcomes = Drive([&](DriveOptions& o) {
          o.tp = tp;
          o.pp = pp;
          o.chunk = chunk;
          o.staggered = chunk == 16;
          o.only_needed_logits = true;
          if (is_divided) o.most_undivided_bytes = 0;
        });
        EXPECT_TRUE(SameBits(outcomes, needed));
      }
    }
  }
}

TEST_P(InvarianceTest, ReferenceBackend) {
  const std::vector<Request> requests = {{RandomTokens(9, 5), 4}};
  const auto reference = [](DriveOptions& o) { o.make_backend = MakeReferenceBackend; };
  EXPECT_TRUE(SameBits(Drive(reference, requests), Drive({}, requests)));
}

INSTANTIATE_TEST_SUITE_P(
    Models, InvarianceTest,
    ::testing::Values(Model{"stories260K", Weights::kF32}, Model{"stories260K", Weights::kBF16},
                      Model{"tiny-llama31", Weights::kF32}, Model{"tiny-llama31", Weights::kBF16},
                      Model{"stories260K", Weights::kF32, Quantization::kInt8},
                      Model{"stories260K", Weights::kF32, Quantization::kInt4},
                      Model{"tiny-llama31", Weights::kBF16, Quantization::kInt8},
                      Model{"tiny-llama31", Weights::kBF16, Quantization::kInt4},
                      Model{"stories260K", Weights::kF32, Quantization::kNone, KvDType::kFp8},
                      Model{"tiny-llama31", Weights::kBF16, Quantization::kInt8, KvDType::kFp8}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      name += info.param.weights == Weights::kBF16 ? "_bf16" : "_f32";
      if (info.param.quantize != Quantization::kNone) {
        name += "_" + std::string(QuantizationName(info.param.quantize));
      }
      return info.param.kv_cache == KvDType::kFp8 ? name + "_fp8_cache" : name;
    });

// More tensor parallel ranks than KV heads; a vocabulary that eight does not divide.
class ReplicatedKvHeadsTest : public ::testing::TestWithParam<std::tuple<DType, Quantization>> {};

TEST_P(ReplicatedKvHeadsTest, GiveTheBitsOfOneRank) {
  const TemporaryModel model(SmallConfig(/*num_kv_heads=*/2), std::get<0>(GetParam()));
  DriveOptions options;
  options.stage.quantize = std::get<1>(GetParam());
  options.make_backend = CpuBackends(1);
  options.stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 8, .max_model_len = 200};
  const std::vector<Request> requests = MixedRequests();
  const auto alone = Drive(model.checkpoint(), options, requests);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const auto& [tp, pp] : {std::pair(2, 1), {4, 1}, {8, 1}, {8, 2}}) {
    options.tp = tp;
    options.pp = pp;
    const auto outcomes = Drive(model.checkpoint(), options, requests);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    EXPECT_TRUE(SameBits(*outcomes, *alone)) << "tp " << tp << " pp " << pp;
    options.most_undivided_bytes = 0;
    const auto divided = Drive(model.checkpoint(), options, requests);
    ASSERT_TRUE(divided.ok()) << divided.status();
    EXPECT_TRUE(SameBits(*divided, *alone)) << "tp " << tp << " pp " << pp << ", divided";
    options.most_undivided_bytes = std::nullopt;
  }
}

INSTANTIATE_TEST_SUITE_P(
    DTypes, ReplicatedKvHeadsTest,
    ::testing::Combine(::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                       ::testing::Values(Quantization::kNone, Quantization::kInt8,
                                         Quantization::kInt4)));

}  // namespace
}  // namespace lockstep::testing
