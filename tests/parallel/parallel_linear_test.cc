#include "parallel/parallel_linear.h"

#include <bit>
#include <mutex>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu_backend_options.h"
#include "parallel/partition.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kTokens = 3;

std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

HostRows RowsOf(const float* data, int64_t num_rows, int64_t row_stride) {
  return {.data = data,
          .dtype = DType::kF32,
          .num_rows = num_rows,
          .row_stride_bytes = row_stride * static_cast<int64_t>(sizeof(float))};
}

// What rank 0 of a tensor parallel group of tp computes.
using RankBody =
    std::function<absl::Status(int rank, Backend&, Communicator&, std::vector<float>&)>;
std::vector<float> ResultOf(int tp, const RankBody& body) {
  std::vector<std::vector<float>> results(static_cast<size_t>(tp));
  RunRanks(tp, /*pp=*/1, [&](int rank, RankGroups& groups) {
    const std::unique_ptr<Backend> backend = MakeReferenceBackend();
    return body(rank, *backend, *groups.tp, results[static_cast<size_t>(rank)]);
  });
  for (const auto& result : results) EXPECT_EQ(Bits(result), Bits(results[0])) << "tp " << tp;
  return results[0];
}

// Calls forward with room for its result, and leaves in y what undivided tokens give: of divided
// ones, every rank's own.
absl::Status ForwardAndJoin(
    Communicator& group, int64_t num_tokens, int64_t width, bool divides, std::vector<float>& y,
    const std::function<absl::Status(const TokenSplit& tokens, float* y)>& forward) {
  const TokenSplit tokens =
      divides ? Divided(num_tokens, group.size(), group.rank()) : Undivided(num_tokens);
  y.resize(static_cast<size_t>(tokens.room() * width));
  RETURN_IF_ERROR(forward(tokens, y.data()));
  if (divides) {
    const int64_t bytes = tokens.share * width * static_cast<int64_t>(sizeof(float));
    RETURN_IF_ERROR(group.AllGather(y.data() + tokens.mine.begin * width, bytes, y.data()));
  }
  y.resize(static_cast<size_t>(num_tokens * width));
  return absl::OkStatus();
}

class ParallelLinearTest : public ::testing::TestWithParam<DType> {};

TEST_P(ParallelLinearTest, RowParallelProductDoesNotDependOnTheNumberOfRanks) {
  constexpr int64_t kIn = 48, kOut = 20;
  const std::vector<float> w = RandomFloats(kOut * kIn, 1);
  const std::vector<float> x = RandomFloats(kTokens * kIn, 2);
  const auto product = [&](int tp, bool divides = false) {
    const int64_t local = kIn / tp;
    return ResultOf(tp,
                    [&](int rank, Backend& backend, Communicator& group,
                        std::vector<float>& y) -> absl::Status {
                      ASSIGN_OR_RETURN(
                          RowParallelLinear linear,
                          RowParallelLinear::Create(backend, group,
                                                    {.out_features = kOut,
                                                     .in_features = local,
                                                     .dtype = GetParam(),
                                                     .num_k_slices = NumKSlices(kIn, tp) / tp}));
                      linear.Fill(0, RowsOf(w.data() + rank * local, kOut, kIn));
                      std::vector<float> my_x;
                      for (int64_t t = 0; t < kTokens; ++t) {
                        const float* row = x.data() + t * kIn + rank * local;
                        my_x.insert(my_x.end(), row, row + local);
                      }
                      return ForwardAndJoin(group, kTokens, kOut, divides, y,
                                            [&](const TokenSplit& tokens, float* out) {
                                              return linear.Forward(my_x.data(), tokens, out);
                                            });
                    });
  };
  const std::vector<float> alone = product(1);
  for (const int tp : {2, 4, 8}) {
    EXPECT_EQ(Bits(product(tp)), Bits(alone)) << "tp " << tp;
    EXPECT_EQ(Bits(product(tp, /*divides=*/true)), Bits(alone)) << "tp " << tp << ", divided";
  }
}

TEST_P(ParallelLinearTest, ColumnParallelOutputsAreThoseOfTheWholeMatrix) {
  constexpr int64_t kIn = 24, kOut = 16;
  const std::vector<float> w = RandomFloats(kOut * kIn, 3);
  const std::vector<float> x = RandomFloats(kIn, 4);
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  const auto outputs = [&](int64_t begin, int64_t end) {
    auto linear = *ColumnParallelLinear::Create(
        *backend, {.out_features = end - begin, .in_features = kIn, .dtype = GetParam()});
    linear.Fill(0, RowsOf(w.data() + begin * kIn, end - begin, kIn));
    std::vector<float> y(static_cast<size_t>(end - begin));
    linear.Forward(x.data(), 1, y.data());
    return y;
  };
  std::vector<float> joined = outputs(0, 5);
  for (const float value : outputs(5, kOut)) joined.push_back(value);
  EXPECT_EQ(Bits(joined), Bits(outputs(0, kOut)));
}

class VocabParallelEmbeddingTest : public ParallelLinearTest {
 protected:
  static constexpr int64_t kVocab = 10, kHidden = 6;

  std::vector<float> Embed(int tp, const std::vector<int32_t>& ids, bool divides = false) {
    const ShardedSizes sizes{1, 8, 8, 8, kVocab, kHidden};
    return ResultOf(tp,
                    [&](int rank, Backend& backend, Communicator& group,
                        std::vector<float>& out) -> absl::Status {
                      const Range vocab = VocabOf(sizes, tp, rank);
                      ASSIGN_OR_RETURN(VocabParallelEmbedding embedding,
                                       VocabParallelEmbedding::Create(backend, group,
                                                                      {.first_id = vocab.begin,
                                                                       .num_rows = vocab.size(),
                                                                       .hidden = kHidden,
                                                                       .dtype = GetParam()}));
                      embedding.Fill(
                          0, RowsOf(table_.data() + vocab.begin * kHidden, vocab.size(), kHidden));
                      return ForwardAndJoin(group, std::ssize(ids), kHidden, divides, out,
                                            [&](const TokenSplit& tokens, float* rows) {
                                              return embedding.Forward(ids.data(), tokens, rows);
                                            });
                    });
  }
  std::vector<float> table_ = RandomFloats(kVocab * kHidden, 5);
};

TEST_P(VocabParallelEmbeddingTest, RowsAreTheTables) {
  for (float& value : table_) value = ToFloat(ToBF16(value));
  const std::vector<float> out = Embed(4, {9, 0, 3});
  const std::vector<float> row9(table_.begin() + 9 * kHidden, table_.end());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + kHidden), row9);
}

// More rows than one copy takes, and wider ones.
TEST_P(VocabParallelEmbeddingTest, LongTablesComeInSeveralCopies) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  const std::unique_ptr<Communicator> group = MakeSelfCommunicator();
  for (const int64_t hidden : {100003, 600001}) {
    std::vector<float> table(7 * hidden);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * 13 % 255);
    auto embedding = VocabParallelEmbedding::Create(
        *backend, *group, {.num_rows = 7, .hidden = hidden, .dtype = GetParam()});
    ASSERT_TRUE(embedding.ok()) << embedding.status();
    embedding->Fill(0, RowsOf(table.data(), 5, hidden));
    embedding->Fill(5, RowsOf(table.data() + 5 * hidden, 2, hidden));
    std::vector<float> out(table.size());
    const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6};
    ASSERT_TRUE(embedding->Forward(ids.data(), Undivided(7), out.data()).ok());
    EXPECT_TRUE(out == table) << hidden;
  }
}

TEST_P(VocabParallelEmbeddingTest, NumberOfRanksCannotBeToldFromTheBits) {
  table_[0] = -0.0f;
  table_[1] = -1e-45f;  // rounds to -0 in bf16
  table_[2] = 1e-40f;
  const std::vector<int32_t> ids = {0, 9, 5, 0, 3};
  const std::vector<float> alone = Embed(1, ids);
  for (const int tp : {2, 4, 8}) {
    EXPECT_EQ(Bits(Embed(tp, ids)), Bits(alone)) << "tp " << tp;
    EXPECT_EQ(Bits(Embed(tp, ids, /*divides=*/true)), Bits(alone)) << "tp " << tp << ", divided";
  }
}

TEST_P(VocabParallelEmbeddingTest, IdsNobodyOwnsGiveZeros) {
  for (const int tp : {1, 4}) {
    EXPECT_THAT(Embed(tp, {-1, 10, INT32_MAX}), ::testing::Each(0.0f)) << "tp " << tp;
  }
}

TEST_P(ParallelLinearTest, HeadWithoutRowsIsLegal) {
  const std::unique_ptr<Backend> backend = MakeReferenceBackend();
  auto head = VocabParallelHead::Create(*backend, /*num_rows=*/0, /*hidden=*/4, GetParam());
  ASSERT_TRUE(head.ok()) << head.status();
  const std::vector<float> x(4);
  head->Forward(x.data(), 1, nullptr);
  EXPECT_EQ(head->bytes(), 0);
}

INSTANTIATE_TEST_SUITE_P(DTypes, ParallelLinearTest, ::testing::Values(DType::kF32, DType::kBF16));
INSTANTIATE_TEST_SUITE_P(DTypes, VocabParallelEmbeddingTest,
                         ::testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace lockstep::testing
