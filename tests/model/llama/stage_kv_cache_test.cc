// KV caches in fp8, and the scales that checkpoints have for them.
#include "model/llama/stage_kv_cache.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "model/checkpoint/kv_scales.h"
#include "model/checkpoint/llama_tensors.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kKeyScale = 0x1p12f;
constexpr float kValueScale = 0x1p9f;

// Tensors of every layer of a model of SmallConfig; "" for none.
struct ScaleNames {
  std::string k;
  std::string v;
};

std::vector<WrittenTensor> TensorsWith(const ModelConfig& config, const ScaleNames& names,
                                       const std::vector<int64_t>& shape = {}) {
  std::vector<WrittenTensor> tensors = TemporaryModel::TensorsOf(config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
    if (!names.k.empty()) tensors.push_back({prefix + names.k, shape});
    if (!names.v.empty()) tensors.push_back({prefix + names.v, shape});
  }
  return tensors;
}

// Keys kKeyScale and values kValueScale times as large, which queries and the output projection
// make up for: the same numbers come out, to the bit, if the cache is scaled, too.
WeightNumber LargeKeysAndValues() {
  return [number = RandomNumbers(TemporaryModel::kDeviation)](const WrittenTensor& tensor,
                                                              int64_t element) mutable {
    const auto is = [&](const char* name) { return absl::StrContains(tensor.name, name); };
    if (IsKvScale(tensor.name)) return is(".k_") ? kKeyScale : kValueScale;
    const float x = number(tensor, element);
    if (is("k_proj")) return x * kKeyScale;
    if (is("v_proj")) return x * kValueScale;
    if (is("q_proj")) return x / kKeyScale;
    return is("o_proj") ? x / kValueScale : x;
  };
}

std::vector<Outcome> OutcomesOf(const Checkpoint& checkpoint, KvDType kv_cache, int tp = 1) {
  DriveOptions options;
  options.make_backend = CpuBackends(1);
  options.tp = tp;
  options.stage.kv_cache = kv_cache;
  options.stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 8, .max_model_len = 200};
  auto outcomes = Drive(checkpoint, options, {{{1, 200, 30, 4, 500, 6, 70}, 3}, {{2, 9}, 5}});
  EXPECT_TRUE(outcomes.ok()) << outcomes.status();
  return outcomes.ok() ? *std::move(outcomes) : std::vector<Outcome>{};
}

TEST(StageKvCacheTest, ScalesOfEveryNameAreMultiplied) {
  const ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  const TemporaryModel plain(config, DType::kF32);
  const std::vector<Outcome> want = OutcomesOf(plain.checkpoint(), KvDType::kFp8);
  for (const ScaleNames& names : {ScaleNames{"k_scale", "v_scale"},
                                  {"k_proj.k_scale", "v_proj.v_scale"},
                                  {"k_proj.output_scale", "v_proj.output_scale"}}) {
    const TemporaryModel scaled(config, DType::kF32, TensorsWith(config, names),
                                LargeKeysAndValues());
    EXPECT_TRUE(SameBits(OutcomesOf(scaled.checkpoint(), KvDType::kFp8), want)) << names.k;
    EXPECT_TRUE(SameBits(OutcomesOf(scaled.checkpoint(), KvDType::kFp8, /*tp=*/2), want))
        << names.k;
    EXPECT_THAT(UnknownTensors(scaled.checkpoint()), IsEmpty());
  }
}

// What the test above would not see if nothing were multiplied.
TEST(StageKvCacheTest, WithoutScalesLargeKeysAndValuesAreCut) {
  const ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  const TemporaryModel plain(config, DType::kF32);
  const TemporaryModel large(config, DType::kF32, LargeKeysAndValues());
  EXPECT_TRUE(SameBits(OutcomesOf(large.checkpoint(), KvDType::kAuto),
                       OutcomesOf(plain.checkpoint(), KvDType::kAuto)));
  const std::vector<Outcome> cut = OutcomesOf(large.checkpoint(), KvDType::kFp8);
  EXPECT_GT(Distance(cut, OutcomesOf(plain.checkpoint(), KvDType::kFp8)), 0.1);
}

TEST(StageKvCacheTest, ScalesMeanNothingToOtherCaches) {
  const ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  const TemporaryModel plain(config, DType::kF32);
  const TemporaryModel scaled(config, DType::kF32, TensorsWith(config, {"k_scale", "v_scale"}),
                              LargeKeysAndValues());
  EXPECT_TRUE(SameBits(OutcomesOf(scaled.checkpoint(), KvDType::kAuto),
                       OutcomesOf(plain.checkpoint(), KvDType::kAuto)));
}

TEST(StageKvCacheTest, ScalesThatAreNoneAreRefused) {
  const ModelConfig config = SmallConfig(/*num_kv_heads=*/4);
  const auto refusal = [&](const ScaleNames& names, const std::vector<int64_t>& shape,
                           float scale) {
    const TemporaryModel model(config, DType::kF32, TensorsWith(config, names, shape),
                               [=](const WrittenTensor& tensor, int64_t) {
                                 return IsKvScale(tensor.name) ? scale : 0.5f;
                               });
    const absl::Status status = ReadKvScales(model.checkpoint(), 1).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float scale : {0.0f, -1.0f, kNan, kInfinity, 1e-30f}) {
    EXPECT_THAT(refusal({"k_scale", ""}, {}, scale), HasSubstr("from 2^-60 to 2^60"));
  }
  EXPECT_THAT(refusal({"", "v_proj.v_scale"}, {}, 0.0f),
              HasSubstr("\"model.layers.1.self_attn.v_proj.v_scale\" is 0"));
  EXPECT_THAT(refusal({"k_scale", ""}, {4}, 1.0f), HasSubstr("16 bytes"));
}

TEST(StageKvCacheTest, Fp8TakesAByteForAnElement) {
  const TemporaryModel model(SmallConfig(/*num_kv_heads=*/4), DType::kF32);
  const StageShape shape =
      *MakeStageShape(model.checkpoint().config(), *ProcessGrid::Create(2, 1), 0);
  const auto bytes = [&](DType dtype) {
    return StageKvCache::Describe(model.checkpoint(), shape, /*block_size=*/16, dtype)
        ->block_bytes();
  };
  EXPECT_EQ(bytes(DType::kE4M3), 2 * 3 * 2 * 16 * 8);  // layers, KV heads of the rank, tokens
  EXPECT_EQ(bytes(DType::kBF16), 2 * bytes(DType::kE4M3));
  EXPECT_EQ(bytes(DType::kF32), 4 * bytes(DType::kE4M3));
}

}  // namespace
}  // namespace lockstep::testing
