#include "model/checkpoint/model_shapes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(ModelShapes, HaveThePublishedParameterCounts) {
  EXPECT_EQ(BuiltInShape("llama-3.2-1b")->num_parameters(), 1'235'814'400);
  EXPECT_EQ(BuiltInShape("llama-3.2-3b")->num_parameters(), 3'212'749'824);
  EXPECT_EQ(BuiltInShape("llama-3.1-8b")->num_parameters(), 8'030'261'248);
  EXPECT_EQ(BuiltInShape("llama-3.1-70b")->num_parameters(), 70'553'706'496);
  EXPECT_EQ(BuiltInShape("llama-3.1-405b")->num_parameters(), 405'853'388'800);
}

TEST(ModelShapes, EveryOneIsAValidConfig) {
  for (const std::string& name : BuiltInShapeNames()) {
    const auto shape = BuiltInShape(name);
    ASSERT_TRUE(shape.ok()) << shape.status();
    const auto parsed = ParseModelConfig(ModelConfigJson(*shape));
    ASSERT_TRUE(parsed.ok()) << name << ": " << parsed.status();
    EXPECT_EQ(parsed->Fingerprint(), shape->Fingerprint());
  }
}

TEST(ModelShapes, ShortNamesAndCaseAreTheSameShape) {
  EXPECT_EQ(BuiltInShape("8B")->Fingerprint(), BuiltInShape("llama-3.1-8b")->Fingerprint());
  EXPECT_EQ(BuiltInShape("Llama-3.2-1B")->Fingerprint(), BuiltInShape("1b")->Fingerprint());
}

TEST(ModelShapes, UnknownNamesGetTheNearestAndTheList) {
  const absl::Status status = BuiltInShape("llama3.1-70").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("did you mean llama-3.1-70b?"));
  for (const std::string& name : BuiltInShapeNames()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  EXPECT_FALSE(BuiltInShape("").ok());
  EXPECT_FALSE(BuiltInShape(std::string(1'000'000, 'x')).ok());
}

}  // namespace
}  // namespace lockstep
