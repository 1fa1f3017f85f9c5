// How many logits a sequence's penalties and biases change, as known to every rank.
#include "model/sampling/adjust_logits.h"

#include "gtest/gtest.h"
#include "tests/model/sampling/sampling_workload.h"

namespace lockstep {
namespace {

using testing::PlainSequence;
using testing::RandomSequence;

constexpr int32_t kEos[] = {2};

TokenHistory HistoryOf(const PlainSequence& sequence, Range vocab) {
  TokenHistory history;
  history.Reset(sequence.params, vocab);
  history.AddPrompt(sequence.prompt);
  for (const int32_t token : sequence.output) history.AddOutput(token);
  return history;
}

OutputSoFar OutputOf(const PlainSequence& sequence, const TokenHistory& history) {
  return {.params = sequence.params,
          .history = history,
          .num_output_tokens = static_cast<int32_t>(sequence.output.size()),
          .eos_token_ids = kEos};
}

int64_t MostOf(const PlainSequence& sequence, const TokenHistory& history, int64_t part_width) {
  return MostAdjustments(OutputOf(sequence, history), part_width);
}

TEST(AdjustLogits, DraftsCountAsIfTheyWereOutput) {
  std::mt19937 random(73);
  for (int i = 0; i < 300; ++i) {
    const PlainSequence whole = RandomSequence(random, 90);
    PlainSequence begun = whole;
    begun.output.resize(random() % (whole.output.size() + 1));
    for (const Range vocab : {Range{0, 90}, Range{30, 60}}) {
      const TokenHistory history = HistoryOf(begun, vocab);
      const TokenHistory whole_history = HistoryOf(whole, vocab);
      OutputSoFar drafted = OutputOf(whole, history);
      drafted.drafts = std::span(whole.output).subspan(begun.output.size());
      std::vector<float> expected(static_cast<size_t>(vocab.size()));
      for (float& logit : expected) logit = static_cast<float>(random() % 100) - 50;
      std::vector<float> adjusted = expected;
      AdjustLogits(expected, vocab, OutputOf(whole, whole_history));
      AdjustLogits(adjusted, vocab, drafted);
      EXPECT_EQ(adjusted, expected);

      std::vector<LogitAdjustment> expected_list;
      std::vector<LogitAdjustment> list;
      LogitsJob expected_job;
      LogitsJob job;
      ListAdjustments(vocab, OutputOf(whole, whole_history), expected_list, expected_job);
      ListAdjustments(vocab, drafted, list, job);
      EXPECT_EQ(job.num_penalties, expected_job.num_penalties);
      const auto by_token = [](const auto& a, const auto& b) { return a.index < b.index; };
      const auto sort_penalties = [&](std::vector<LogitAdjustment>& all) {
        std::sort(all.begin() + job.num_biases, all.begin() + job.num_biases + job.num_penalties,
                  by_token);
      };
      sort_penalties(list);
      sort_penalties(expected_list);
      ASSERT_EQ(list.size(), expected_list.size());
      for (size_t k = 0; k < list.size(); ++k) {
        EXPECT_EQ(list[k].index, expected_list[k].index);
        EXPECT_EQ(list[k].amount, expected_list[k].amount);
      }
      EXPECT_LE(std::ssize(list), MostAdjustments(drafted, vocab.size()));
    }
  }
}

TEST(MostAdjustments, BoundWhatAnyRankListsAndAreTheSameOnAll) {
  std::mt19937 random(71);
  for (int i = 0; i < 300; ++i) {
    const PlainSequence sequence = RandomSequence(random, 90);
    const int64_t most = MostOf(sequence, HistoryOf(sequence, {0, 30}), 30);
    for (const Range vocab : {Range{0, 30}, Range{30, 60}, Range{60, 90}}) {
      const TokenHistory history = HistoryOf(sequence, vocab);
      EXPECT_EQ(MostOf(sequence, history, 30), most);
      std::vector<LogitAdjustment> adjustments;
      LogitsJob job;
      ListAdjustments(vocab, OutputOf(sequence, history), adjustments, job);
      EXPECT_LE(std::ssize(adjustments), most);
    }
  }
}

TEST(MostAdjustments, CountWhatIsPenalizedAlone) {
  PlainSequence sequence;
  sequence.prompt = {1, 2, 3, 1, 2, 3, 50};
  sequence.output = {4, 4};
  const auto most = [&](int64_t part_width) {
    return MostOf(sequence, HistoryOf(sequence, {0, 10}), part_width) - std::ssize(kEos);
  };
  EXPECT_EQ(most(100), 0);
  sequence.params.frequency_penalty = 0.5f;
  EXPECT_EQ(most(100), 2) << "outputs only, of which some may not have been read yet";
  sequence.params.repetition_penalty = 1.1f;
  EXPECT_EQ(most(100), 6);
  EXPECT_EQ(most(5), 5);
}

}  // namespace
}  // namespace lockstep
