#include "model/sampling/vocab_sampler.h"

#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "parallel/partition.h"
#include "tests/model/sampling/plain_sampler.h"
#include "tests/model/sampling/sampling_workload.h"
#include "tests/parallel/run_ranks.h"

namespace lockstep {
namespace {

using testing::PlainSequence;
using testing::RandomWorkload;
using testing::RankWorkload;
using testing::Workload;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Result {
  std::vector<RowOutcome> outcomes;
  int64_t num_whole_rows = 0;
};

// One rank's part of a run.
absl::Status RunRank(const Workload& workload, int num_candidates, Communicator& tp, Result& run) {
  VocabSampler sampler({.vocab_size = workload.vocab_size,
                        .eos_token_ids = workload.eos_token_ids,
                        .num_candidates = num_candidates},
                       tp);
  const RankWorkload mine(workload, sampler.vocab());
  const absl::Status status = sampler.Choose(mine.rows(), mine.logits().data(), run.outcomes);
  run.num_whole_rows = sampler.num_whole_rows_gathered();
  return status;
}

// All ranks must agree; rank 0's outcomes.
Result Sample(const Workload& workload, int tp, int num_candidates = 256) {
  std::vector<Result> runs(tp);
  testing::RunRanks(tp, 1, [&](int rank, RankGroups& groups) {
    return RunRank(workload, num_candidates, *groups.tp, runs[rank]);
  });
  for (int rank = 1; rank < tp; ++rank) {
    for (size_t i = 0; i < runs[0].outcomes.size(); ++i) {
      EXPECT_EQ(runs[rank].outcomes[i].token, runs[0].outcomes[i].token) << "rank " << rank;
    }
  }
  return runs[0];
}

void ExpectSame(const Result& actual, const Result& expected) {
  ASSERT_EQ(actual.outcomes.size(), expected.outcomes.size());
  for (size_t i = 0; i < actual.outcomes.size(); ++i) {
    EXPECT_EQ(actual.outcomes[i].token, expected.outcomes[i].token) << "row " << i;
    EXPECT_EQ(actual.outcomes[i].has_logprobs, expected.outcomes[i].has_logprobs) << "row " << i;
    EXPECT_TRUE(actual.outcomes[i].logprobs == expected.outcomes[i].logprobs) << "row " << i;
  }
}

void ExpectPlainLogprobs(const std::vector<float>& raw, int32_t token, int32_t num_top,
                         const RowOutcome& outcome) {
  ASSERT_EQ(outcome.has_logprobs, num_top >= 0);
  if (num_top < 0) return;
  const double log_sum = testing::PlainLogSumExp(raw);
  EXPECT_NEAR(outcome.logprobs.logprob, raw[token] - log_sum, 2e-5);
  const std::vector<int32_t> order = testing::PlainOrder(raw);
  ASSERT_EQ(outcome.logprobs.top.size(), std::min<size_t>(num_top, order.size()));
  for (size_t i = 0; i < outcome.logprobs.top.size(); ++i) {
    EXPECT_EQ(outcome.logprobs.top[i].token, order[i]);
    EXPECT_NEAR(outcome.logprobs.top[i].logprob, raw[order[i]] - log_sum, 2e-5);
  }
}

void ExpectPlain(const Workload& workload, const Result& run) {
  ASSERT_EQ(run.outcomes.size(), workload.logits.size());
  for (size_t i = 0; i < run.outcomes.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "row " << i);
    const std::vector<float>& raw = workload.logits[i];
    const PlainSequence& sequence = workload.sequences[i];
    const RowOutcome& outcome = run.outcomes[i];
    if (workload.prompt_targets[i] >= 0) {
      ExpectPlainLogprobs(raw, workload.prompt_targets[i], sequence.params.num_prompt_logprobs,
                          outcome);
      continue;
    }
    const std::vector<float> processed =
        testing::PlainProcessed(raw, sequence, workload.eos_token_ids);
    EXPECT_TRUE(outcome.token != kNoToken || testing::PlainOrder(processed).empty());
    EXPECT_TRUE(outcome.token == kNoToken || !testing::PlainOrder(raw).empty());
    const int32_t token = std::max(outcome.token, 0);
    EXPECT_TRUE(testing::PlainChoices(processed, sequence).contains(token)) << "token " << token;
    ExpectPlainLogprobs(raw, token, sequence.params.num_logprobs, outcome);
  }
}

TEST(VocabSampler, MatchesThePlainDefinition) {
  for (const int64_t vocab_size : {1, 2, 7, 513, 2048}) {
    SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab_size);
    Workload workload = RandomWorkload(static_cast<uint32_t>(vocab_size), vocab_size, 400);
    if (vocab_size < 57) {
      for (PlainSequence& sequence : workload.sequences) sequence.params.logit_bias.clear();
      workload.eos_token_ids = {static_cast<int32_t>(vocab_size - 1)};
    }
    ExpectPlain(workload, Sample(workload, 1));
  }
}

TEST(VocabSampler, MatchesThePlainDefinitionOnALargeVocabulary) {
  const Workload workload = RandomWorkload(5, 32001, 24);
  ExpectPlain(workload, Sample(workload, 1));
}

TEST(VocabSampler, EveryLayoutGivesTheSameBits) {
  for (const int64_t vocab_size : {513, 32001}) {
    const Workload workload = RandomWorkload(11, vocab_size, vocab_size > 10000 ? 24 : 200);
    const Result single = Sample(workload, 1);
    for (const int tp : {2, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << "vocabulary " << vocab_size << ", tp " << tp);
      ExpectSame(Sample(workload, tp), single);
    }
  }
}

TEST(VocabSampler, OtherGroupSizesMatchThePlainDefinition) {
  const Workload workload = RandomWorkload(17, 513, 100);
  for (const int tp : {3, 5}) ExpectPlain(workload, Sample(workload, tp));
}

TEST(VocabSampler, WholeRowsGiveTheSameBitsAsCandidates) {
  const Workload workload = RandomWorkload(23, 513, 200);
  const Result all_candidates = Sample(workload, 1, 513);
  for (const int tp : {1, 4}) {
    for (const int num_candidates : {1, 4, 64}) {
      SCOPED_TRACE(::testing::Message() << "tp " << tp << ", candidates " << num_candidates);
      const Result few = Sample(workload, tp, num_candidates);
      ExpectSame(few, all_candidates);
      EXPECT_GT(few.num_whole_rows, all_candidates.num_whole_rows);
    }
  }
}

TEST(VocabSampler, FlatDistributionReachesTheLastToken) {
  constexpr int64_t kVocab = 3000;
  Workload workload;
  workload.vocab_size = kVocab;
  for (uint64_t position = 0; position < 40; ++position) {
    PlainSequence sequence;
    sequence.params.temperature = 100.0f;
    sequence.params.num_logprobs = 1;
    sequence.params.seed = 99;
    sequence.prompt.resize(position + 1);
    workload.Add(std::vector<float>(kVocab, 1.0f), sequence);
  }
  const Result single = Sample(workload, 1);
  EXPECT_GT(single.num_whole_rows, 30);
  ExpectPlain(workload, single);
  ExpectSame(Sample(workload, 8), single);
}

TEST(VocabSampler, GreedyTiesTakeTheLowestToken) {
  Workload workload;
  workload.vocab_size = 513;
  PlainSequence greedy;
  greedy.params.temperature = 0.0f;
  greedy.prompt = {1};
  std::vector<float> row(513, -1.0f);
  row[300] = row[70] = row[512] = 4.0f;
  workload.Add(row, greedy);
  for (const int tp : {1, 2, 4, 8}) EXPECT_EQ(Sample(workload, tp).outcomes[0].token, 70);
}

TEST(VocabSampler, HostileLogitsChooseAValidToken) {
  Workload workload;
  workload.vocab_size = 100;
  PlainSequence sampled;
  sampled.params.num_logprobs = 2;
  sampled.prompt = {1};
  PlainSequence greedy = sampled;
  greedy.params.temperature = 0.0f;
  std::vector<float> some(100, kNan);
  some[40] = -1e30f;
  some[41] = -kInf;
  std::vector<float> infinite(100, 0.0f);
  infinite[60] = kInf;
  infinite[61] = kNan;
  for (const PlainSequence& sequence : {sampled, greedy}) {
    workload.Add(std::vector<float>(100, kNan), sequence);
    workload.Add(std::vector<float>(100, -kInf), sequence);
    workload.Add(some, sequence);
    workload.Add(infinite, sequence);
  }
  for (const int tp : {1, 2, 4, 8}) {
    const Result run = Sample(workload, tp);
    for (const size_t first : {0, 4}) {
      EXPECT_EQ(run.outcomes[first].token, kNoToken);
      EXPECT_EQ(run.outcomes[first].logprobs.logprob, -kInf);
      EXPECT_TRUE(run.outcomes[first].logprobs.top.empty());
      EXPECT_EQ(run.outcomes[first + 1].token, kNoToken);
      EXPECT_EQ(run.outcomes[first + 2].token, 40);
      EXPECT_EQ(run.outcomes[first + 2].logprobs.logprob, 0.0f);
      EXPECT_EQ(run.outcomes[first + 3].token, 60);
      EXPECT_EQ(run.outcomes[first + 3].logprobs.top[1].logprob,
                -std::numeric_limits<float>::max());
    }
  }
}

TEST(VocabSampler, PenaltiesCountOutputTokens) {
  // Equal logits: the token seen least wins by exactly its penalties.
  PlainSequence sequence;
  sequence.params.temperature = 0.0f;
  sequence.params.frequency_penalty = 0.5f;
  sequence.prompt = {0, 0, 0, 3};
  sequence.output = {0, 1, 1};
  Workload workload;
  workload.vocab_size = 4;
  workload.Add({2.0f, 2.0f, 1.6f, 1.4f}, sequence);  // 1.5, 1.0, 1.6, 1.4
  sequence.params.presence_penalty = -1.0f;
  workload.Add({2.0f, 2.0f, 1.6f, 1.4f}, sequence);  // 2.5, 2.0, 1.6, 1.4
  sequence.params.repetition_penalty = 2.0f;
  workload.Add({2.0f, 4.5f, 1.6f, 1.4f}, sequence);      // 1.5, 2.25, 1.6, 0.7
  workload.Add({-1.0f, -1.5f, -2.6f, -0.8f}, sequence);  // -1.5, -3, -2.6, -1.6
  const Result run = Sample(workload, 1);
  EXPECT_EQ(run.outcomes[0].token, 2);
  EXPECT_EQ(run.outcomes[1].token, 0);
  EXPECT_EQ(run.outcomes[2].token, 1);
  EXPECT_EQ(run.outcomes[3].token, 0);
}

TEST(VocabSampler, MinTokensHoldsBackEosAndStopTokens) {
  Workload workload;
  workload.vocab_size = 8;
  workload.eos_token_ids = {5};
  PlainSequence sequence;
  sequence.params.temperature = 0.0f;
  sequence.params.min_tokens = 2;
  sequence.params.stop_token_ids = {6};
  sequence.prompt = {1};
  sequence.output = {1};
  const std::vector<float> row = {0, 0, 0, 1, 0, 3, 2, 0};
  workload.Add(row, sequence);
  sequence.params.ignore_eos = true;
  workload.Add(row, sequence);
  sequence.params.ignore_eos = false;
  sequence.output = {1, 1};
  workload.Add(row, sequence);
  const Result run = Sample(workload, 2);
  EXPECT_EQ(run.outcomes[0].token, 3);
  EXPECT_EQ(run.outcomes[1].token, 5);
  EXPECT_EQ(run.outcomes[2].token, 5);
}

// Pearson's test with fixed seeds; 37.7 is the 0.999 quantile of chi-square with 15 degrees of
// freedom.
TEST(VocabSampler, DrawsFollowTheDistribution) {
  constexpr int kVocab = 16;
  constexpr int kDraws = 4000;
  std::vector<float> row(kVocab);
  for (int i = 0; i < kVocab; ++i) row[i] = 0.15f * static_cast<float>((i * 5) % kVocab);
  const double log_sum = testing::PlainLogSumExp(row);
  for (const uint64_t seed : {1u, 2u, 3u}) {
    Workload workload;
    workload.vocab_size = kVocab;
    for (int draw = 0; draw < kDraws; ++draw) {
      PlainSequence sequence;
      sequence.params.seed = seed;
      sequence.sequence_index = draw % 4;
      sequence.prompt.resize(1 + draw / 4);
      workload.Add(row, sequence);
    }
    const Result run = Sample(workload, 2);
    std::vector<int> counts(kVocab);
    for (const RowOutcome& outcome : run.outcomes) ++counts[outcome.token];
    double chi_square = 0.0;
    for (int i = 0; i < kVocab; ++i) {
      const double expected = kDraws * std::exp(row[i] - log_sum);
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 37.7) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lockstep
