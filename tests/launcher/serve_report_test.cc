#include "launcher/serving/serve_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ModelSummary SummaryWithUnused(std::vector<std::string> names) {
  ModelSummary summary;
  summary.directory = "/models/small";
  summary.unknown_tensors = std::move(names);
  return summary;
}

std::string ErrorsOf(const ModelSummary& summary) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  ServeReport(/*json=*/false, ModelFlags(), /*num_replicas=*/1).Model(summary);
  ::testing::internal::GetCapturedStdout();
  return ::testing::internal::GetCapturedStderr();
}

TEST(ServeReportTest, TensorsThatAreNotUsedAreCountedAndTheFirstNamed) {
  EXPECT_EQ(ErrorsOf(SummaryWithUnused({})), "");
  EXPECT_THAT(ErrorsOf(SummaryWithUnused({"adapter"})),
              HasSubstr("warning: 1 tensor of the checkpoint is not used: \"adapter\" ("));
  const std::string many = ErrorsOf(SummaryWithUnused({"a", "b", "c", "d", "e"}));
  EXPECT_THAT(many, HasSubstr("5 tensors of the checkpoint are not used: \"a\", \"b\", \"c\" and "
                              "2 more"));
  EXPECT_THAT(many, Not(HasSubstr("\"d\"")));
}

TEST(ServeReportTest, TheWarningIsAnEventOfItsOwn) {
  ::testing::internal::CaptureStdout();
  ServeReport(/*json=*/true, ModelFlags(), /*num_replicas=*/1).Model(SummaryWithUnused({"a"}));
  const std::string out = ::testing::internal::GetCapturedStdout();
  const auto warning = nlohmann::json::parse(out.substr(out.find('\n') + 1));
  EXPECT_EQ(warning["event"], "warning");
  EXPECT_THAT(warning["message"].get<std::string>(), HasSubstr("1 tensor"));
}

}  // namespace
}  // namespace lockstep
