#include "model/tokenizer/special_tokens.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/tokenizer_file.h"
#include "tests/model/tokenizer/small_tokenizer.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(SpecialTokens, TheConfigGoesBeforeTheMap) {
  const testing::TempDirectory model;
  EXPECT_THAT(*ReadSpecialTokens(model.path()), IsEmpty());
  model.Write("special_tokens_map.json",
              R"({"eos_token": "<b>", "unk_token": {"content": "<u>"}})");
  model.Write("tokenizer_config.json", R"({"eos_token": "<a>", "bos_token": null})");
  EXPECT_THAT(*ReadSpecialTokens(model.path()),
              ElementsAre(Pair("eos_token", "<a>"), Pair("unk_token", "<u>")));
  model.Write("special_tokens_map.json", R"(["<b>"])");
  EXPECT_THAT(ReadSpecialTokens(model.path()).status().message(),
              HasSubstr("special_tokens_map.json: not a JSON object"));
}

TEST(SpecialTokens, TheEndTokenHasTheIdOfTheTokenizersFile) {
  const testing::TempDirectory model;
  model.Write("tokenizer_config.json", R"({"eos_token": {"content": "</s>", "lstrip": false}})");
  EXPECT_EQ(FindEndToken(model.path()), std::nullopt);
  model.Write("tokenizer.json", testing::SmallSentencePiece().dump());
  EXPECT_EQ(FindEndToken(model.path()), 2);
  model.Write("tokenizer_config.json", R"({"eos_token": "<none>"})");
  EXPECT_EQ(FindEndToken(model.path()), std::nullopt);
  model.Write("tokenizer_config.json", R"({"eos_token": )");
  EXPECT_EQ(FindEndToken(model.path()), std::nullopt);
}

TEST(FindTokenId, AddedOnesAndThoseOfTheVocabularyAreFound) {
  const std::string text = R"({"id": 1, "content": "<a>", "normalizer": {"content": "<b>", "id": 8},
      "added_tokens": [{"id": 3, "content": "<a>"}, {"content": "<b>", "id": 4, "special": true},
                       {"content": "<none>"}],
      "decoder": {"vocab": {"<c>": 9}}, "model": {"merges": [["<c>", "d"]],
      "vocab": {"d": 5, "<c>": 6, "<far>": 4194304}}})";
  EXPECT_EQ(FindTokenId(text, "<a>"), 3);
  EXPECT_EQ(FindTokenId(text, "<b>"), 4);
  EXPECT_EQ(FindTokenId(text, "<c>"), 6);
  for (const char* unknown : {"", "<none>", "<far>", "id", "content", "vocab", "<e>"}) {
    EXPECT_EQ(FindTokenId(text, unknown), std::nullopt) << unknown;
  }
}

// What stands behind the token need not even be JSON.
TEST(FindTokenId, ReadsNoFurtherThanTheToken) {
  EXPECT_EQ(FindTokenId(R"({"added_tokens": [{"content": "<a>", "id": 3}, !!)", "<a>"), 3);
  EXPECT_EQ(FindTokenId(R"({"added_tokens": [{"content": "<a>", "id": 3, !!)", "<a>"),
            std::nullopt);
}

}  // namespace
}  // namespace lockstep
