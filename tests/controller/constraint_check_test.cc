#include "runtime/controller/constraint_check.h"

#include <filesystem>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// SentencePiece's kind, with tokens for bytes from `first` on.
std::unique_ptr<Tokenizer> ByteTokenizer(int first) {
  nlohmann::json vocabulary = {{"<unk>", 0}};
  for (int byte = first; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    const std::string name = {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
    vocabulary[name] = vocabulary.size();
  }
  const nlohmann::json file = {
      {"model",
       {{"type", "BPE"},
        {"byte_fallback", true},
        {"unk_token", "<unk>"},
        {"vocab", vocabulary},
        {"merges", nlohmann::json::array()}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"decoder",
       {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}}}};
  return Tokenizer::Parse(file.dump()).value();
}

OutputConstraint RegexConstraint(const std::string& pattern) {
  return {OutputConstraint::Kind::kRegex, pattern};
}

TEST(ConstraintCheckTest, TakesWhatRanksCanCompile) {
  const auto tokenizer = ByteTokenizer(0);
  const ConstraintCheck check(tokenizer.get(), /*has_eos=*/true);
  EXPECT_TRUE(check.Check({}).ok());
  EXPECT_TRUE(check.Check(RegexConstraint("[a-z]+")).ok());
  EXPECT_TRUE(check.Check({OutputConstraint::Kind::kChoices, R"(["yes", "no"])"}).ok());
  EXPECT_TRUE(check.Check({OutputConstraint::Kind::kJsonSchema, R"({"type": "object"})"}).ok());
}

TEST(ConstraintCheckTest, SaysWhatIsWrongWithAConstraint) {
  const auto tokenizer = ByteTokenizer(0);
  const ConstraintCheck check(tokenizer.get(), /*has_eos=*/true);
  const auto error = [&](OutputConstraint::Kind kind, const char* text) {
    const absl::Status status = check.Check({kind, text});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    return std::string(status.message());
  };
  using Kind = OutputConstraint::Kind;
  EXPECT_THAT(error(Kind::kRegex, "a(?=b)"), HasSubstr("constraint.regex: at byte 1: look-ahead"));
  EXPECT_THAT(error(Kind::kRegex, "a{60000}{2}"), HasSubstr("constraint.regex: "));
  EXPECT_THAT(error(Kind::kChoices, "[]"), HasSubstr("constraint.choices: must be at least one"));
  EXPECT_THAT(error(Kind::kChoices, R"(["a", ""])"), HasSubstr("must be texts that are not empty"));
  EXPECT_THAT(error(Kind::kJsonSchema, "{"), HasSubstr("constraint.json_schema: "));
  EXPECT_THAT(error(Kind::kJsonSchema, R"({"properties": {"age": {"multipleOf": 3}}})"),
              HasSubstr("#/properties/age"));
}

TEST(ConstraintCheckTest, SaysWhyAModelsOutputsCannotBeConstrained) {
  const auto error = [](const Tokenizer* tokenizer, bool has_eos) {
    const ConstraintCheck check(tokenizer, has_eos);
    EXPECT_TRUE(check.Check({}).ok());
    const absl::Status status = check.Check(RegexConstraint("a"));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto tokenizer = ByteTokenizer(0);
  EXPECT_THAT(error(nullptr, true), HasSubstr("no tokenizer.json"));
  EXPECT_THAT(error(tokenizer.get(), false), HasSubstr("no end-of-text token"));
  const auto without_newline = ByteTokenizer(11);
  EXPECT_THAT(error(without_newline.get(), true), HasSubstr("no token for byte 0x09"));
}

}  // namespace
}  // namespace lockstep
