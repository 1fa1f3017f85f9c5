// The families that share Llama's layers compute an independent implementation's numbers, and the
// same bits in every layout.
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/cpu_backend_options.h"
#include "tests/model/llama/family_models.h"

namespace lockstep::testing {
namespace {

class ModelFamiliesTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    family_ = MakeFamilyModel(GetParam());
    options_ = family_.options;
    options_.make_backend = CpuBackends(1);
  }

  FamilyModel family_;
  DriveOptions options_;
};

TEST_P(ModelFamiliesTest, CpusComputeTheGoldenNumbers) { ExpectGoldenNumbers(family_, options_); }

TEST_P(ModelFamiliesTest, TheReferenceComputesTheGoldenNumbers) {
  options_.make_backend = MakeReferenceBackend;
  ExpectGoldenNumbers(family_, options_);
}

// Of more ranks than KV heads, too.
TEST_P(ModelFamiliesTest, LayoutsGiveTheBitsOfOneRank) {
  const auto alone = Drive(family_.model->checkpoint(), options_, family_.requests);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const auto& [tp, pp] : {std::pair(2, 1), {4, 1}, {1, 3}, {4, 2}}) {
    options_.tp = tp;
    options_.pp = pp;
    const auto outcomes = Drive(family_.model->checkpoint(), options_, family_.requests);
    ASSERT_TRUE(outcomes.ok()) << outcomes.status();
    EXPECT_TRUE(SameBits(*outcomes, *alone)) << "tp " << tp << " pp " << pp;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ModelFamiliesTest, ::testing::ValuesIn(kFamilyModels),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lockstep::testing
