#include "model/checkpoint/inspect.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/model_shapes.h"
#include "model/checkpoint/model_writer.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint/model_directory.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TempDirectory;

struct Layout {
  const char* shape;
  int tp;
  int pp;
};

class ShardSizes : public ::testing::TestWithParam<Layout> {};

// What the ranks hold together: each matrix once, except replicated KV heads, norms on every tp
// rank and a tied table twice.
TEST_P(ShardSizes, AddUpToTheModel) {
  const ModelConfig config = *BuiltInShape(GetParam().shape);
  const int tp = GetParam().tp;
  const int pp = GetParam().pp;
  const auto shards = ShardsOfLayout(config, tp, pp, config.dtype);
  ASSERT_TRUE(shards.ok()) << shards.status();
  ASSERT_EQ(static_cast<int>(shards->size()), tp * pp);
  int64_t weight_bytes = 0, kv_bytes = 0;
  for (const RankShard& shard : *shards) {
    weight_bytes += shard.weight_bytes;
    kv_bytes += shard.kv_bytes_per_token;
  }
  const int64_t kv_copies = std::max<int64_t>(1, tp / config.num_kv_heads);
  const int64_t norms = (2 * config.num_layers + 1) * config.hidden_size;
  const int64_t kv =
      2 * config.num_layers * config.num_kv_heads * config.head_dim * config.hidden_size;
  const int64_t table =
      config.tie_word_embeddings && pp > 1 ? config.vocab_size * config.hidden_size : 0;
  EXPECT_EQ(weight_bytes,
            2 * (config.num_parameters() + (tp - 1) * norms + (kv_copies - 1) * kv + table));
  EXPECT_EQ(kv_bytes, kv_copies * KvBytesPerToken(config, config.dtype));
}

INSTANTIATE_TEST_SUITE_P(Layouts, ShardSizes,
                         ::testing::Values(Layout{"tiny", 1, 1}, Layout{"tiny", 4, 2},
                                           Layout{"tiny", 8, 4}, Layout{"1b", 1, 1},
                                           Layout{"1b", 2, 2}, Layout{"8b", 8, 1},
                                           Layout{"70b", 16, 5}, Layout{"405b", 8, 2}));

TEST(ShardSizes, LayoutsThatDoNotDivideAreRefused) {
  EXPECT_FALSE(ShardsOfLayout(*BuiltInShape("8b"), 3, 1, DType::kBF16).ok());
  EXPECT_FALSE(ShardsOfLayout(*BuiltInShape("8b"), 1, 33, DType::kBF16).ok());
  EXPECT_FALSE(ShardsOfLayout(*BuiltInShape("8b"), 0, 1, DType::kBF16).ok());
}

// Stored in int8: bytes of the down matrices of a rank, of layouts that cut 384 columns into 8
// parts of 48 and, which are whole groups, 3 of 128.
TEST(ShardSizes, MatricesCutWithinGroupsAreHeldAsNumbers) {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 384;
  config.num_layers = 1;
  config.num_heads = config.num_kv_heads = 24;
  config.head_dim = 64;
  config.vocab_size = 6;
  config.dtype = DType::kBF16;
  config.stored = *ParseStoredQuantization(PackedQuantizationJson(Quantization::kInt8), 1);
  const auto bytes = [&config](int tp, Quantization quantize) {
    return (*HeldShards(config, tp, 1, {config.dtype, quantize}))[0].weight_bytes;
  };
  // With all in int8, where a short group has a scale, too.
  const int64_t short_groups = QuantizedBytes(Quantization::kInt8, 64, 48, 8);
  EXPECT_EQ(bytes(1, Quantization::kNone) - bytes(1, Quantization::kInt8),
            64 * 384 * 2 - short_groups);
  EXPECT_EQ(bytes(2, Quantization::kNone) - bytes(2, Quantization::kInt8),
            (64 * 384 * 2 - short_groups) / 2);
  EXPECT_EQ(bytes(3, Quantization::kNone), bytes(3, Quantization::kInt8));
}

TEST(ShardSizes, KvBytesOfLlama31) {
  // 32 layers x 8 heads x 128 x (key, value) x 2 bytes.
  EXPECT_EQ(KvBytesPerToken(*BuiltInShape("8b"), DType::kBF16), 131072);
}

class Inspect : public ::testing::Test {
 protected:
  Inspect() {
    SynthesizeOptions options;
    options.shape = "tiny";
    options.num_layers = 2;
    options.max_shard_bytes = 4'000'000;
    options.output = directory_.path() / "model";
    options.num_threads = 2;
    EXPECT_TRUE(SynthesizeModel(options).ok());
  }
  ModelSummary Summarize() {
    const auto summary = InspectModel(directory_.path() / "model", 2, 2);
    EXPECT_TRUE(summary.ok()) << summary.status();
    return *summary;
  }
  TempDirectory directory_;
};

TEST_F(Inspect, SummarizesASynthesizedModel) {
  const ModelSummary summary = Summarize();
  EXPECT_TRUE(summary.tensor_check.ok());
  EXPECT_TRUE(summary.has_tokenizer);
  EXPECT_EQ(summary.tensors.size(), 2u * 9 + 3);
  EXPECT_EQ(summary.tensor_bytes, 2 * summary.num_parameters);
  EXPECT_EQ(summary.bytes_by_dtype.at("BF16"), summary.tensor_bytes);
  EXPECT_EQ(summary.ranks.size(), 4u);
  int64_t file_bytes = 0;
  for (const FileSummary& file : summary.files) file_bytes += file.tensor_bytes;
  EXPECT_EQ(file_bytes, summary.tensor_bytes);
  EXPECT_GT(summary.files.size(), 1u);
}

TEST_F(Inspect, WhatTextsMissIsTold) {
  EXPECT_THAT(MissingForTexts(Summarize()), IsEmpty());
  for (const char* file : {"tokenizer.json", "generation_config.json"}) {
    std::filesystem::remove(directory_.path() / "model" / file);
  }
  ModelSummary summary = Summarize();
  summary.config.eos_token_ids.clear();
  EXPECT_THAT(MissingForTexts(summary),
              ElementsAre(HasSubstr("no tokenizer.json"), HasSubstr("no end token")));
  EXPECT_THAT(SummaryText(summary, false), HasSubstr("  no end token (eos_token_id in"));
}

TEST_F(Inspect, TextSaysWhatMatters) {
  const std::string text = SummaryText(Summarize(), /*list_tensors=*/false);
  for (const char* part : {"2 layers", "hidden_size 256", "8 heads (4 KV) of 32",
                           "tp 2 x pp 2 = 4 ranks", "stage 1: layers 1-1", "model-00001-of-"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("model.norm.weight")));
  EXPECT_THAT(SummaryText(Summarize(), true), HasSubstr("\"model.norm.weight\" BF16 [256]"));
}

TEST_F(Inspect, JsonHasTheSameNumbers) {
  const ModelSummary summary = Summarize();
  const json out = json::parse(SummaryJson(summary));
  EXPECT_EQ(out["num_parameters"], summary.num_parameters);
  EXPECT_EQ(out["config"]["num_hidden_layers"], 2);
  EXPECT_EQ(out["ranks"].size(), 4u);
  EXPECT_EQ(out["ranks"][3]["weight_bytes"], summary.ranks[3].weight_bytes);
  EXPECT_EQ(out["tensors"].size(), summary.tensors.size());
  EXPECT_TRUE(out["problem"].is_null());
}

TEST(InspectProblems, AMissingTensorIsReportedNotFatal) {
  const TempDirectory directory;
  directory.Write("config.json", ModelConfigJson(*BuiltInShape("tiny")));
  directory.Write("model.safetensors",
                  testing::SafetensorsBytes(
                      R"({"bad\nname":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"));
  const auto summary = InspectModel(directory.path(), 1, 1);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_FALSE(summary->tensor_check.ok());
  const std::string text = SummaryText(*summary, true);
  EXPECT_THAT(text, HasSubstr("cannot be served: "));
  EXPECT_THAT(text, HasSubstr(R"(not used: "bad\nname")"));
  EXPECT_THAT(json::parse(SummaryJson(*summary))["problem"].get<std::string>(),
              HasSubstr("model.embed_tokens.weight"));
}

}  // namespace
}  // namespace lockstep
