#include "deploy/plan/pareto.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

Plan SmallPlan() {
  PlanRequest request = RequestFor();
  request.max_nodes = 1;
  return *MakePlan(request);
}

TEST(Pareto, NothingBeatsTheFrontInBoth) {
  const std::vector<ParetoPoint> points = ParetoPoints(SmallPlan());
  ASSERT_GT(points.size(), 10u);
  for (const ParetoPoint& front : points) {
    if (!front.on_front) continue;
    for (const ParetoPoint& other : points) {
      EXPECT_FALSE(other.tpot_ms < front.tpot_ms &&
                   other.tokens_per_s_per_gpu > front.tokens_per_s_per_gpu);
    }
  }
}

TEST(Pareto, ChartsShowTheAnswer) {
  const Plan plan = SmallPlan();
  const std::vector<ParetoPoint> points = ParetoPoints(plan);
  EXPECT_THAT(ParetoText(points), HasSubstr("A"));
  const std::string svg = ParetoSvg(plan, points);
  EXPECT_TRUE(svg.starts_with("<svg ")) << svg.substr(0, 40);
  EXPECT_THAT(svg, HasSubstr("#d33"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(ParetoHtml(plan, points), HasSubstr("<!DOCTYPE html>"));
}

}  // namespace
}  // namespace lockstep::plan
