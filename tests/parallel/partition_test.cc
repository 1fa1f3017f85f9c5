#include "parallel/partition.h"

#include <climits>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

struct NamedSizes {
  const char* name;
  ShardedSizes sizes;
  std::vector<int> tps;  // all that work, up to 16
};

const NamedSizes kModels[] = {
    {"llama-3.2-1b", {16, 32, 8, 8192, 128256, 2048}, {1, 2, 4, 8, 16}},
    {"llama-3.2-3b", {28, 24, 8, 8192, 128256, 3072}, {1, 2, 4, 8}},
    {"llama-3.1-8b", {32, 32, 8, 14336, 128256, 4096}, {1, 2, 4, 8, 16}},
    {"llama-3.1-70b", {80, 64, 8, 28672, 128256, 8192}, {1, 2, 4, 8, 16}},
    {"llama-3.1-405b", {126, 128, 8, 53248, 128256, 16384}, {1, 2, 4, 8, 16}},
    {"stories260K", {5, 8, 4, 172, 512, 64}, {1, 2, 4}},
    {"tiny-llama31", {4, 8, 4, 352, 512, 128}, {1, 2, 4, 8}},
};

std::string TestName(const ::testing::TestParamInfo<NamedSizes>& info) {
  std::string name = info.param.name;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

// Consecutive ranges that cover [0, extent) without hole or overlap.
void ExpectCovers(int64_t extent, int num_parts, const std::function<Range(int)>& part) {
  int64_t next = 0;
  for (int i = 0; i < num_parts; ++i) {
    EXPECT_EQ(part(i).begin, next) << "part " << i;
    EXPECT_GE(part(i).size(), 0) << "part " << i;
    next = part(i).end;
  }
  EXPECT_EQ(next, extent);
}

class PartitionTest : public ::testing::TestWithParam<NamedSizes> {
 protected:
  const ShardedSizes& sizes() const { return GetParam().sizes; }
};

TEST_P(PartitionTest, ExactlyTheDividingTpsWork) {
  std::vector<int> working;
  for (int tp = 1; tp <= 16; ++tp) {
    if (CheckLayout(sizes(), tp, 1).ok()) working.push_back(tp);
  }
  EXPECT_EQ(working, GetParam().tps);
}

TEST_P(PartitionTest, EveryRowIsOwnedOnce) {
  for (const int tp : GetParam().tps) {
    SCOPED_TRACE(tp);
    ExpectCovers(sizes().num_heads, tp, [&](int r) { return QueryHeadsOf(sizes(), tp, r); });
    ExpectCovers(sizes().intermediate_size, tp,
                 [&](int r) { return IntermediateOf(sizes(), tp, r); });
    ExpectCovers(sizes().vocab_size, tp, [&](int r) { return VocabOf(sizes(), tp, r); });
    ExpectCovers(sizes().vocab_size, NumVocabSlices(tp),
                 [&](int slice) { return VocabSlice(sizes(), tp, slice); });
  }
}

TEST_P(PartitionTest, KvHeadsAreOwnedOnceOrReplicatedEqually) {
  for (const int tp : GetParam().tps) {
    SCOPED_TRACE(tp);
    std::vector<int> holders(static_cast<size_t>(sizes().num_kv_heads));
    for (int rank = 0; rank < tp; ++rank) {
      const Range heads = KvHeadsOf(sizes(), tp, rank);
      for (int64_t head = heads.begin; head < heads.end; ++head)
        ++holders[static_cast<size_t>(head)];
    }
    const int copies = std::max(1, tp / static_cast<int>(sizes().num_kv_heads));
    EXPECT_THAT(holders, ::testing::Each(copies));
  }
}

TEST_P(PartitionTest, EveryQueryHeadFindsItsKvHeadOnItsRank) {
  const int64_t group = sizes().num_heads / sizes().num_kv_heads;
  for (const int tp : GetParam().tps) {
    for (int rank = 0; rank < tp; ++rank) {
      const Range queries = QueryHeadsOf(sizes(), tp, rank);
      const Range kv = KvHeadsOf(sizes(), tp, rank);
      const int64_t local_group = queries.size() / kv.size();
      ASSERT_EQ(queries.size() % kv.size(), 0);
      for (int64_t head = queries.begin; head < queries.end; ++head) {
        EXPECT_EQ(kv.begin + (head - queries.begin) / local_group, head / group);
      }
    }
  }
}

TEST_P(PartitionTest, KSlicesAreTheSameForTheUsualTps) {
  for (const int64_t extent : {sizes().num_heads, sizes().intermediate_size}) {
    const int whole = NumKSlices(extent, 1);
    for (const int tp : GetParam().tps) {
      const int slices = NumKSlices(extent, tp);
      EXPECT_EQ(extent % slices, 0) << extent << " tp " << tp;
      EXPECT_EQ(slices % tp, 0) << extent << " tp " << tp;
      if (whole % tp == 0) {
        EXPECT_EQ(slices, whole) << extent << " tp " << tp;
      }
    }
  }
}

TEST_P(PartitionTest, VocabularySlicesAreTheSameUpToEightRanks) {
  for (const int tp : {1, 2, 4, 8}) {
    for (int slice = 0; slice < 8; ++slice) {
      EXPECT_EQ(VocabSlice(sizes(), tp, slice), VocabSlice(sizes(), 1, slice));
    }
  }
}

TEST_P(PartitionTest, StagesCoverAllLayersAndNoneIsEmpty) {
  for (int pp = 1; pp <= sizes().num_layers; ++pp) {
    const std::vector<Range> stages = LayersOfStages(sizes(), pp);
    ASSERT_EQ(std::ssize(stages), pp);
    ExpectCovers(sizes().num_layers, pp, [&](int s) { return stages[static_cast<size_t>(s)]; });
    for (const Range& stage : stages) EXPECT_GE(stage.size(), 1) << "pp " << pp;
  }
}

// The cost of the largest stage when the last has `last` layers and the others share the rest
// evenly: of a token with logits, or without.
double Bottleneck(const ShardedSizes& s, int pp, int64_t last, bool logits) {
  const double layer =
      1.0 * s.hidden_size * s.hidden_size * (2.0 + 2.0 * s.num_kv_heads / s.num_heads) +
      3.0 * s.hidden_size * s.intermediate_size;
  const double head = logits ? 1.0 * s.hidden_size * s.vocab_size : 0.0;
  const int64_t most = (s.num_layers - last + pp - 2) / (pp - 1);
  return std::max(most * layer, last * layer + head);
}

// By how much the split falls short of the best for decodes and of the best for prompts, at worst.
double Shortfall(const ShardedSizes& s, int pp, int64_t last) {
  double worst = 0;
  for (const bool logits : {false, true}) {
    double least = Bottleneck(s, pp, 1, logits);
    for (int64_t other = 2; other <= s.num_layers - (pp - 1); ++other) {
      least = std::min(least, Bottleneck(s, pp, other, logits));
    }
    worst = std::max(worst, Bottleneck(s, pp, last, logits) / least);
  }
  return worst;
}

TEST_P(PartitionTest, NeitherDecodesNorPromptsSufferMoreThanTheyMust) {
  for (int pp = 2; pp <= sizes().num_layers; ++pp) {
    const std::vector<Range> stages = LayersOfStages(sizes(), pp);
    int64_t least = INT64_MAX, most = 0;
    for (int s = 0; s + 1 < pp; ++s) {
      least = std::min(least, stages[static_cast<size_t>(s)].size());
      most = std::max(most, stages[static_cast<size_t>(s)].size());
    }
    EXPECT_LE(most - least, 1) << "pp " << pp;
    const double ours = Shortfall(sizes(), pp, stages.back().size());
    for (int64_t last = 1; last <= sizes().num_layers - (pp - 1); ++last) {
      EXPECT_LE(ours, Shortfall(sizes(), pp, last) * (1 + 1e-12))
          << "pp " << pp << " last " << last;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PartitionTest, ::testing::ValuesIn(kModels), TestName);

TEST(LayersOfStagesTest, LmHeadCountsForTokensWithLogitsAlone) {
  // Llama-3.2-1B: the head costs as much as 4.3 of its 16 layers, so that decodes would like 10 and
  // 6 layers, prompts 8 and 8.
  EXPECT_EQ(LayersOfStages({16, 32, 8, 8192, 128256, 2048}, 2),
            (std::vector<Range>{{0, 9}, {9, 16}}));
  // With a vocabulary this small it costs next to nothing.
  EXPECT_EQ(LayersOfStages({16, 32, 8, 8192, 512, 2048}, 2), (std::vector<Range>{{0, 8}, {8, 16}}));
}

TEST(LayersOfStagesTest, FirstStageIsNeverTheLargerOfTwoUnequals) {
  EXPECT_EQ(LayersOfStages({7, 32, 8, 8192, 512, 2048}, 3),
            (std::vector<Range>{{0, 2}, {2, 5}, {5, 7}}));
}

TEST(NumKSlicesTest, LargestPowerOfTwoUpToEight) {
  EXPECT_EQ(NumKSlices(32, 1), 8);
  EXPECT_EQ(NumKSlices(172, 2), 4);
  EXPECT_EQ(NumKSlices(6, 2), 2);
  EXPECT_EQ(NumKSlices(7, 1), 1);
}

TEST(NumKSlicesTest, OneSlicePerRankOutsideThatFamily) {
  EXPECT_EQ(NumKSlices(32, 16), 16);
  EXPECT_EQ(NumKSlices(24, 3), 3);
  EXPECT_EQ(NumKSlices(12, 6), 6);
  EXPECT_EQ(NumKSlices(7, 7), 7);
}

TEST(VocabSliceTest, LastSlicesOfSmallVocabulariesAreShortOrEmpty) {
  ShardedSizes sizes{1, 8, 8, 8, 10, 8};
  EXPECT_EQ(VocabSlice(sizes, 4, 4), (Range{8, 10}));
  EXPECT_EQ(VocabSlice(sizes, 4, 5), (Range{10, 10}));
  EXPECT_EQ(VocabOf(sizes, 4, 2), (Range{8, 10}));
  EXPECT_EQ(VocabOf(sizes, 4, 3).size(), 0);
  EXPECT_EQ(NumVocabSlices(3), 9);
  EXPECT_EQ(NumVocabSlices(16), 16);
}

class CheckLayoutTest : public ::testing::Test {
 protected:
  std::string Refusal(int tp, int pp) {
    const absl::Status status = CheckLayout(sizes_, tp, pp);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  ShardedSizes sizes_{5, 8, 4, 172, 512, 64};
};

TEST_F(CheckLayoutTest, NamesWhatDoesNotDivideAndWhatWould) {
  EXPECT_THAT(Refusal(8, 1), HasSubstr("tp 8 does not divide intermediate_size 172"));
  EXPECT_THAT(Refusal(3, 1), HasSubstr("num_heads 8"));
  EXPECT_THAT(Refusal(3, 1), HasSubstr("num_kv_heads 4"));
  EXPECT_THAT(Refusal(3, 1), HasSubstr("values of tp that work: 1, 2, 4"));
  EXPECT_THAT(Refusal(1, 6), HasSubstr("pp 6 does not fit num_layers 5"));
  EXPECT_THAT(Refusal(1, 6), HasSubstr("1 to 5"));
}

TEST_F(CheckLayoutTest, NumbersOutOfRangeAreRefused) {
  for (const int bad : {0, -1, INT_MIN, INT_MAX}) {
    EXPECT_THAT(Refusal(bad, 1), HasSubstr(std::to_string(bad)));
    EXPECT_THAT(Refusal(1, bad), HasSubstr(std::to_string(bad)));
  }
  sizes_.vocab_size = INT64_MAX;
  EXPECT_THAT(Refusal(1, 1), HasSubstr("vocab_size is 9223372036854775807"));
  sizes_.vocab_size = 512;
  sizes_.num_kv_heads = 0;
  EXPECT_THAT(Refusal(1, 1), HasSubstr("num_kv_heads is 0"));
  sizes_.num_kv_heads = 3;
  EXPECT_THAT(Refusal(1, 1), HasSubstr("num_kv_heads 3 does not divide num_heads 8"));
}

TEST_F(CheckLayoutTest, TpBetweenMultiplesOfTheKvHeadsIsRefused) {
  sizes_ = {5, 24, 4, 24, 512, 64};
  EXPECT_THAT(Refusal(6, 1), HasSubstr("tp 6 neither divides num_kv_heads 4 nor is a multiple"));
  EXPECT_TRUE(CheckLayout(sizes_, 12, 1).ok());
  EXPECT_TRUE(CheckLayout(sizes_, 2, 5).ok());
}

}  // namespace
}  // namespace lockstep
