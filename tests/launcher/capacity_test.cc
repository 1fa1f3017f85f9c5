#include "launcher/serving/capacity.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using Kind = RanksDevices::Kind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// One token of KV: 2 layers x 2 (k, v) x 2 heads x 4 x 4 bytes = 128 bytes; a block of 4 tokens
// 512.
ModelConfig SmallConfig() {
  ModelConfig config;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.vocab_size = 64;
  config.max_position_embeddings = 10;
  config.dtype = DType::kF32;
  return config;
}

class CapacityTest : public ::testing::Test {
 protected:
  CapacityTest() {
    model_.block_size = 4;
    model_.max_num_seqs = 5;
  }
  absl::StatusOr<PlannedCapacity> Plan() {
    return PlanCapacity(
        {config_, model_, rank_, devices_, kv_cache_, num_replicas_, share_weights_});
  }
  ModelConfig config_ = SmallConfig();
  ModelFlags model_;
  RankFlags rank_;
  RanksDevices devices_ = {.memory_bytes = int64_t{1} << 30};
  KvCacheFlags kv_cache_;
  int num_replicas_ = 1;
  bool share_weights_ = false;
};

TEST_F(CapacityTest, DefaultIsWhatAllSequencesCanFill) {
  const auto capacity = Plan();
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_EQ(capacity->kv_bytes_per_token, 128);
  EXPECT_EQ(capacity->num_kv_blocks, 5 * 3);  // ten tokens take three blocks
}

TEST_F(CapacityTest, AnFp8CacheTakesAByteForAnElement) {
  rank_.kv_cache_dtype = "fp8";
  const auto capacity = Plan();
  ASSERT_TRUE(capacity.ok()) << capacity.status();
  EXPECT_EQ(capacity->kv_bytes_per_token, 32);
  config_.dtype = DType::kBF16;
  EXPECT_EQ(Plan()->kv_bytes_per_token, 32);
  EXPECT_THAT(CacheWarnings(*Plan(), config_), IsEmpty());
}

TEST_F(CapacityTest, AnFp8CacheOfKeysWithBiasesIsWarnedOf) {
  config_.family = ModelFamily::kQwen2;
  EXPECT_THAT(CacheWarnings(*Plan(), config_), IsEmpty());
  rank_.kv_cache_dtype = "fp8";
  EXPECT_THAT(CacheWarnings(*Plan(), config_), ElementsAre(HasSubstr("keys have biases")));
}

TEST_F(CapacityTest, CopiesInTheHostsMemoryTakeThatOfACacheOnCpus) {
  kv_cache_.offload_gib = 0.5;
  kv_cache_.num_blocks = 1000000;
  EXPECT_TRUE(Plan().ok()) << Plan().status();
  EXPECT_EQ(Plan()->offload_bytes, int64_t{1} << 29);
  EXPECT_THAT(CacheWarnings(*Plan(), config_), ElementsAre(HasSubstr("--kv-cache-gib makes more")));
  kv_cache_.num_blocks = 1100000;  // of 512 bytes
  EXPECT_FALSE(Plan().ok());
  kv_cache_.offload_gib = 1.5;
  EXPECT_THAT(std::string(Plan().status().message()),
              HasSubstr("copies of KV blocks would take 1.5 GiB"));
  devices_.kind = Kind::kGpus;
  EXPECT_TRUE(Plan().ok()) << Plan().status();
  EXPECT_THAT(CacheWarnings(*Plan(), config_), IsEmpty());
}

// A cache of so many GiB over all ranks takes no more of them, whatever they turn out to be.
TEST_F(CapacityTest, WhereTheDeviceIsUnknownACacheCountsAsWhereItTakesMost) {
  config_.dtype = DType::kF16;
  devices_.kind = Kind::kEither;
  kv_cache_.gib = 1.0 / 1024;
  devices_.memory_bytes = int64_t{1} << 60;
  const auto unknown = Plan();
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  devices_.kind = Kind::kCpus;
  EXPECT_EQ(unknown->num_kv_blocks, Plan()->num_kv_blocks);
  EXPECT_EQ(unknown->kv_bytes_per_token, 128);
  EXPECT_LT(unknown->weight_bytes, Plan()->weight_bytes);
  devices_.kind = Kind::kEither;
  rank_.dtype = "f16";
  EXPECT_EQ(Plan()->kv_bytes_per_token, 64);
}

TEST_F(CapacityTest, OnGpusANumberOfF16TakesTwoBytesAndElsewhereFour) {
  config_.dtype = DType::kF16;
  const auto wide = Plan();
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->kv_bytes_per_token, 128);
  devices_.kind = Kind::kGpus;
  EXPECT_EQ(Plan()->kv_bytes_per_token, 64);
  EXPECT_LT(Plan()->weight_bytes, wide->weight_bytes);
  config_.dtype = DType::kF32;
  rank_.dtype = "f16";
  EXPECT_EQ(Plan()->kv_bytes_per_token, 64);
}

TEST_F(CapacityTest, StoredFp8StaysSoWhereItIsMultiplied) {
  config_.dtype = DType::kBF16;
  config_.stored.emplace().method = StoredQuantization::Method::kFloat8;
  devices_.kind = Kind::kGpus;
  const int64_t as_numbers = Plan()->weight_bytes;
  devices_.multiply_fp8 = true;
  // Of 16 bits 8, and a scale to each row: q, k and v, output, gate and up, down.
  const int64_t rows = 32 + 16 + 64 + 16;
  const int64_t elements = 32 * 16 + 16 * 16 + 64 * 16 + 16 * 32;
  EXPECT_EQ(as_numbers - Plan()->weight_bytes, 2 * (elements - 4 * rows));
  // What is spared stays as it is.
  config_.stored->spared.Add(1, LayerMatrix::kDown);
  EXPECT_EQ(as_numbers - Plan()->weight_bytes, 2 * (elements - 4 * rows) - (16 * 32 - 4 * 16));
}

TEST_F(CapacityTest, SaysWhoseMemoryIsShort) {
  devices_.memory_bytes = 100;
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr("on this host"));
  devices_.why_no_gpus = "; no GPU is used: no driver";
  EXPECT_THAT(std::string(Plan().status().message()),
              HasSubstr("on this host; no GPU is used: no driver"));
  devices_.kind = Kind::kGpus;
  EXPECT_THAT(std::string(Plan().status().message()),
              HasSubstr("100 B may be taken of the ranks' GPUs (--gpu-memory-utilization)"));
  EXPECT_THAT(std::string(Plan().status().message()), Not(HasSubstr("fp8")));
  devices_.multiply_fp8 = true;
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr("or --quantize fp8"));
  model_.quantize = "fp8";
  EXPECT_THAT(std::string(Plan().status().message()), Not(HasSubstr("--quantize")));
}

TEST_F(CapacityTest, DefaultLeavesHalfOfTheFreeMemory) {
  devices_.memory_bytes = Plan()->weight_bytes + 6 * 512;
  EXPECT_EQ(Plan()->num_kv_blocks, 3);
}

TEST_F(CapacityTest, GibIsOverAllRanksOfAnyLayout) {
  kv_cache_.gib = 1.0 / 1024 / 1024;  // 1 KiB: two blocks
  EXPECT_EQ(Plan()->num_kv_blocks, 2);
  model_.tp = 2;
  model_.pp = 2;
  EXPECT_EQ(Plan()->num_kv_blocks, 2);
}

TEST_F(CapacityTest, HalfTheBytesPerTokenInBf16) {
  const int64_t f32_weights = Plan()->weight_bytes;
  rank_.dtype = "bf16";
  EXPECT_EQ(Plan()->kv_bytes_per_token, 64);
  const int64_t norms = 5 * 16 * 4;  // in f32
  EXPECT_EQ(Plan()->weight_bytes, norms + (f32_weights - norms) / 2);
}

// Rows to copy, and the head.
TEST_F(CapacityTest, ATiedTableIsCountedTwice) {
  const int64_t untied = Plan()->weight_bytes;
  config_.tie_word_embeddings = true;
  EXPECT_EQ(Plan()->weight_bytes, untied);
}

TEST_F(CapacityTest, QuantizedMatricesAndTheirScalesAreCounted) {
  model_.quantize = "int8";
  // Per layer: q and output 16 x 16, k and v 8 x 16, gate, up and down 32 x 16, and two norms.
  // The output product has 4 slices of 4, down 8 of 4; others one group per row.
  const int64_t attention = 32 * (16 + 2) + 16 * 4 * (4 + 2);
  const int64_t mlp = 64 * (16 + 2) + 16 * 8 * (4 + 2);
  const int64_t edges = 64 * 16 * 4 + 64 * (16 + 2) + 16 * 4;
  EXPECT_EQ(Plan()->weight_bytes, 2 * (attention + mlp + 2 * 16 * 4) + edges);
  EXPECT_EQ(Plan()->kv_bytes_per_token, 128);
}

TEST_F(CapacityTest, RefusesMoreThanThereIsWithTheNumbers) {
  kv_cache_.num_blocks = 1 << 30;
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr("1,073,741,824 blocks of 512 B"));
  devices_.memory_bytes = 100;
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr("100 B"));
}

TEST_F(CapacityTest, ReplicasDivideTheMemoryThatTheirCommonWeightsLeave) {
  const int64_t weights = Plan()->weight_bytes;
  num_replicas_ = 3;
  kv_cache_.num_blocks = 1;
  devices_.memory_bytes = weights + 3 * 512;
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr(" for each of 3 replicas"));
  share_weights_ = true;
  EXPECT_TRUE(Plan().ok()) << Plan().status();
  devices_.memory_bytes -= 1;
  EXPECT_THAT(std::string(Plan().status().message()),
              HasSubstr("beside the weights 511 B of memory are available for each of 3 replicas"));
  devices_.memory_bytes = weights - 1;
  EXPECT_THAT(std::string(Plan().status().message()),
              AllOf(HasSubstr("the weights take"), Not(HasSubstr("for each"))));
}

TEST_F(CapacityTest, RefusesACacheWithoutABlock) {
  kv_cache_.gib = 1e-9;
  EXPECT_EQ(Plan().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CapacityTest, RefusesLengthsBeyondTheModel) {
  model_.max_model_len = 11;
  EXPECT_THAT(std::string(Plan().status().message()), HasSubstr("10 positions"));
  config_.sliding_window = 10;
  EXPECT_THAT(std::string(Plan().status().message()),
              HasSubstr("10 positions, to which its sliding window keeps contexts"));
}

TEST_F(CapacityTest, RefusesLayoutsThatDoNotDivide) {
  model_.tp = 3;
  EXPECT_EQ(Plan().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep
