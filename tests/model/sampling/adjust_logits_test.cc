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
