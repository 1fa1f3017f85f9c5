#include "deploy/plan/worked_examples.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

TEST(WorkedExamples, ReproduceEveryQuotedFigure) {
  const std::vector<Figure> figures = FiguresOf405bSlides();
  EXPECT_GE(figures.size(), 28u);
  for (const Figure& figure : figures) {
    EXPECT_NEAR(figure.computed, figure.quoted, 0.005 * figure.quoted)
        << figure.section << ": " << figure.question;
  }
}

TEST(WorkedExamples, SayWhatHoldsInPractice) {
  const auto text = ExplainText("405b-slides");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("really 1 as tp 1 x pp 1:"));
  // What `plan --concurrency 1 --context 128000` answers; in a tensor parallel group it takes four.
  EXPECT_THAT(*text, HasSubstr("really 3 as tp 1 x pp 3:"));
  EXPECT_THAT(*text, HasSubstr("really 16 as tp 8 x pp 2:"));
  EXPECT_THAT(*text, HasSubstr("per dollar"));
}

TEST(WorkedExamples, UnknownSetGetsTheNearest) {
  EXPECT_THAT(std::string(ExplainText("405b").status().message()),
              HasSubstr("did you mean 405b-slides?"));
}

}  // namespace
}  // namespace lockstep::plan
