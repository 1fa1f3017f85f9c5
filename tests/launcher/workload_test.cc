#include "launcher/bench/workload.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

WorkloadOptions RandomPrompts() {
  WorkloadOptions options;
  options.input_len = {4, 6};
  options.output_len = {2, 3};
  options.vocab_size = 4;
  options.excluded_ids = {1, 2};
  return options;
}

TEST(ArrivalClockTest, FixedArrivalsHaveEqualGaps) {
  ArrivalClock clock(ArrivalClock::Process::kFixed, 4.0, 1);
  EXPECT_DOUBLE_EQ(clock.Next(), 0.0);
  EXPECT_DOUBLE_EQ(clock.Next(), 0.25);
  EXPECT_DOUBLE_EQ(clock.Next(), 0.5);
}

TEST(ArrivalClockTest, PoissonGapsHaveMeanAndDeviationOfAnExponential) {
  ArrivalClock clock(ArrivalClock::Process::kPoisson, 10.0, 7);
  constexpr int kCount = 20000;
  double last = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double now = clock.Next();
    ASSERT_GT(now, last);
    sum += now - last;
    squares += (now - last) * (now - last);
    last = now;
  }
  const double mean = sum / kCount;
  const double deviation = std::sqrt(squares / kCount - mean * mean);
  // Five standard errors of either estimate.
  EXPECT_NEAR(mean, 0.1, 5 * 0.1 / std::sqrt(kCount));
  EXPECT_NEAR(deviation, 0.1, 5 * 0.1 * std::sqrt(2.0 / kCount));
}

TEST(WorkloadTest, ARequestDependsOnlyOnSeedAndIndex) {
  const Workload one(RandomPrompts());
  const Workload two(RandomPrompts());
  two.Request(3);
  EXPECT_EQ(one.Request(5).SerializeAsString(), two.Request(5).SerializeAsString());
  EXPECT_NE(one.Request(5).SerializeAsString(), one.Request(6).SerializeAsString());
  WorkloadOptions other = RandomPrompts();
  other.seed = 2;
  EXPECT_NE(Workload(other).Request(5).SerializeAsString(), one.Request(5).SerializeAsString());
}

TEST(WorkloadTest, RandomPromptsKeepToLengthsAndVocabulary) {
  const Workload workload(RandomPrompts());
  for (uint64_t i = 0; i < 50; ++i) {
    const v1::GenerateRequest request = workload.Request(i);
    EXPECT_GE(request.token_ids().ids_size(), 4);
    EXPECT_LE(request.token_ids().ids_size(), 6);
    EXPECT_THAT(request.token_ids().ids(), Each(::testing::AnyOf(0, 3)));
    EXPECT_GE(request.stop().max_tokens(), 2);
    EXPECT_LE(request.stop().max_tokens(), 3);
    EXPECT_TRUE(request.stop().ignore_eos());
  }
}

TEST(WorkloadTest, GivenPromptsAreUsedInTurn) {
  WorkloadOptions options = RandomPrompts();
  options.prompts = *ParsePromptLines("plain\n{\"token_ids\": [7, 8], \"max_tokens\": 9}\n");
  const Workload workload(options);
  EXPECT_EQ(workload.Request(0).text(), "plain");
  EXPECT_THAT(workload.Request(1).token_ids().ids(), ElementsAre(7, 8));
  EXPECT_EQ(workload.Request(1).stop().max_tokens(), 9);
  EXPECT_EQ(workload.Request(2).text(), "plain");
}

TEST(PromptLinesTest, ErrorsNameTheLine) {
  for (const char* content :
       {"ok\n{\"prompt\": 1}", "ok\n{broken", "ok\n{}", "ok\n\xff", "ok\n{\"token_ids\": [-1]}",
        "ok\n{\"prompt\":\"a\",\"max_tokens\":0}"}) {
    const auto prompts = ParsePromptLines(content);
    ASSERT_FALSE(prompts.ok()) << content;
    EXPECT_THAT(std::string(prompts.status().message()), HasSubstr("line 2")) << content;
  }
  EXPECT_FALSE(ParsePromptLines("\n \n").ok());
}

}  // namespace
}  // namespace lockstep
