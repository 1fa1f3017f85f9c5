#include "runtime/security/api_tokens.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFirst[] = "first-token-0123456789";
constexpr char kSecond[] = "second-token-987654321";

std::string ErrorOf(const absl::StatusOr<ApiTokens>& tokens) {
  return std::string(tokens.status().message());
}

TEST(EqualInConstantTime, ComparesLengthAndBytes) {
  EXPECT_TRUE(EqualInConstantTime("abc", "abc"));
  EXPECT_TRUE(EqualInConstantTime("", ""));
  for (const char* other : {"abd", "ab", "abcd", "", "Abc"}) {
    EXPECT_FALSE(EqualInConstantTime(other, "abc")) << other;
  }
}

TEST(ApiTokens, AnyTokenOfTheFileIsAccepted) {
  const auto tokens = ApiTokens::Parse(absl::StrCat("# who\n", kFirst, "\n\n  ", kSecond, "\r\n"));
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->size(), 2u);
  EXPECT_TRUE(tokens->Accept(BearerOf(kFirst)));
  EXPECT_TRUE(tokens->Accept(BearerOf(kSecond)));
  EXPECT_TRUE(tokens->Accept(absl::StrCat("bearer ", kSecond)));
}

TEST(ApiTokens, NothingElseIs) {
  const auto tokens = ApiTokens::Parse(kFirst);
  ASSERT_TRUE(tokens.ok());
  const std::string token = kFirst;
  const std::vector<std::string> wrong = {"",
                                          token,
                                          "Bearer",
                                          "Bearer ",
                                          "Basic " + token,
                                          "Bearer " + token + "x",
                                          "Bearer " + token.substr(1),
                                          "Bearer  " + token,
                                          "Bearer # who"};
  for (const std::string& shown : wrong) {
    EXPECT_FALSE(tokens->Accept(shown)) << '"' << shown << '"';
  }
}

TEST(ApiTokens, AWrongLineIsNamedByNumberNotByContent) {
  const std::string shorter = "short-secret";
  EXPECT_THAT(
      ErrorOf(ApiTokens::Parse(absl::StrCat(kFirst, "\n", shorter))),
      AllOf(HasSubstr("line 2"), HasSubstr("12"), HasSubstr("16"), Not(HasSubstr(shorter))));
  EXPECT_THAT(ErrorOf(ApiTokens::Parse("a token with blanks in it")), HasSubstr("blank"));
  EXPECT_THAT(ErrorOf(ApiTokens::Parse("# nothing\n\n")), HasSubstr("no token"));
}

TEST(ApiTokens, AFileThatOthersCanReadIsRefused) {
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / absl::StrCat("tokens-", ::getpid());
  WriteFile(path, kFirst, 0600);
  EXPECT_TRUE(ApiTokens::Load(path.string()).ok());
  WriteFile(path, kFirst, 0604);
  EXPECT_THAT(ErrorOf(ApiTokens::Load(path.string())),
              AllOf(HasSubstr(path.string()), HasSubstr("0604"), HasSubstr("chmod 600")));
  WriteFile(path, "", 0600);
  EXPECT_THAT(ErrorOf(ApiTokens::Load(path.string())), HasSubstr("0 bytes"));
  std::filesystem::remove(path);
  EXPECT_EQ(ApiTokens::Load(path.string()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOf(ApiTokens::Load("/dev/zero")), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace lockstep::testing
