#include "model/checkpoint/synthetic_tokenizer.h"

#include <set>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/model_shapes.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

ModelConfig Vocabulary(int64_t vocab_size, std::optional<int32_t> bos, std::vector<int32_t> eos) {
  ModelConfig config = *BuiltInShape("tiny");
  config.vocab_size = vocab_size;
  config.bos_token_id = bos;
  config.eos_token_ids = std::move(eos);
  return config;
}

json Document(const ModelConfig& config) {
  const auto tokenizer = MakeSyntheticTokenizer(config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return json::parse(tokenizer->tokenizer_json);
}

class SyntheticTokenizerOf : public ::testing::TestWithParam<ModelConfig> {};

TEST_P(SyntheticTokenizerOf, CoversEveryIdOnce) {
  const json document = Document(GetParam());
  std::multiset<int64_t> ids;
  for (const auto& [token, id] : document["model"]["vocab"].items()) ids.insert(id.get<int64_t>());
  for (const json& added : document["added_tokens"]) ids.insert(added["id"].get<int64_t>());
  ASSERT_EQ(static_cast<int64_t>(ids.size()), GetParam().vocab_size);
  int64_t expected = 0;
  for (const int64_t id : ids) ASSERT_EQ(id, expected++);
}

TEST_P(SyntheticTokenizerOf, MergesJoinTokensToTokens) {
  const json model = Document(GetParam())["model"];
  for (const json& merge : model["merges"]) {
    const std::vector<std::string> parts = absl::StrSplit(merge.get<std::string>(), ' ');
    ASSERT_EQ(parts.size(), 2u) << merge;
    for (const std::string& token : {parts[0], parts[1], parts[0] + parts[1]}) {
      ASSERT_TRUE(model["vocab"].contains(token)) << merge;
    }
  }
}

TEST_P(SyntheticTokenizerOf, EndsAndBeginsAreSpecial) {
  const json document = Document(GetParam());
  std::set<int64_t> special;
  for (const json& added : document["added_tokens"]) special.insert(added["id"].get<int64_t>());
  if (GetParam().bos_token_id.has_value()) {
    EXPECT_TRUE(special.contains(*GetParam().bos_token_id));
  }
  for (const int32_t id : GetParam().eos_token_ids) EXPECT_TRUE(special.contains(id));
}

INSTANTIATE_TEST_SUITE_P(Shapes, SyntheticTokenizerOf,
                         ::testing::Values(*BuiltInShape("tiny"), *BuiltInShape("llama-3.2-1b"),
                                           Vocabulary(32000, 1, {2}),  // Llama 2's ids
                                           Vocabulary(512, 1, {2}),    // few words fit
                                           Vocabulary(258, 0, {257}),  // bytes and nothing else
                                           Vocabulary(256, std::nullopt, {}),  // not even a begin
                                           Vocabulary(1000, std::nullopt, {5, 6})));

TEST(SyntheticTokenizer, BeginIsAddedByTheTemplate) {
  const json processor = Document(Vocabulary(512, 1, {2}))["post_processor"]["processors"][1];
  EXPECT_EQ(processor["type"], "TemplateProcessing");
  EXPECT_EQ(processor["single"][0]["SpecialToken"]["id"], "<|begin_of_text|>");
  EXPECT_EQ(processor["special_tokens"]["<|begin_of_text|>"]["ids"], json::array({1}));
}

TEST(SyntheticTokenizer, HasLlama3sSpecialTokens) {
  const json added = Document(*BuiltInShape("8b"))["added_tokens"];
  ASSERT_EQ(added.size(), 256u);
  EXPECT_EQ(added[0], json::parse(R"({"id":128000,"content":"<|begin_of_text|>","single_word":false,
      "lstrip":false,"rstrip":false,"normalized":false,"special":true})"));
  EXPECT_EQ(added[9]["content"], "<|eot_id|>");
  EXPECT_EQ(added[255]["content"], "<|reserved_special_token_247|>");
}

TEST(SyntheticTokenizer, TooSmallAVocabularyIsRefused) {
  const auto tokenizer = MakeSyntheticTokenizer(Vocabulary(257, 0, {1}));
  EXPECT_THAT(std::string(tokenizer.status().message()),
              HasSubstr("vocab_size = 257 leaves 255 ids"));
}

}  // namespace
}  // namespace lockstep
