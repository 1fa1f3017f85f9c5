#include "model/chat_template/chat_template_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class ChatTemplateFileTest : public ::testing::Test {
 protected:
  std::string Error() const {
    return std::string(ReadChatTemplate(model_.path()).status().message());
  }
  testing::TempDirectory model_;
};

TEST_F(ChatTemplateFileTest, AModelNeedsNone) {
  const auto file = ReadChatTemplate(model_.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->source, "");
  EXPECT_THAT(file->special_tokens, IsEmpty());
}

TEST_F(ChatTemplateFileTest, ItComesWithTheSpecialTokens) {
  model_.Write("tokenizer_config.json", R"({"chat_template": "T", "eos_token": null,
      "bos_token": {"content": "<s>"}, "pad_token": "<p>", "model_max_length": 5})");
  const auto file = ReadChatTemplate(model_.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->source, "T");
  EXPECT_THAT(file->special_tokens,
              ElementsAre(Pair("bos_token", "<s>"), Pair("pad_token", "<p>")));
}

TEST_F(ChatTemplateFileTest, SpecialTokensMayStandInTheirMap) {
  model_.Write("tokenizer_config.json", R"({"chat_template": "T", "bos_token": "<s>"})");
  model_.Write("special_tokens_map.json", R"({"bos_token": "<b>", "eos_token": {"content": "<e>"},
      "additional_special_tokens": ["<x>"]})");
  const auto file = ReadChatTemplate(model_.path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->special_tokens,
              ElementsAre(Pair("bos_token", "<s>"), Pair("eos_token", "<e>")));
  model_.Write("special_tokens_map.json", "[]");
  EXPECT_THAT(Error(), HasSubstr("special_tokens_map.json"));
}

TEST_F(ChatTemplateFileTest, NamedOnesHaveOneForTools) {
  model_.Write("tokenizer_config.json", R"({"chat_template": [
      {"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"},
      {"name": "rag", "template": "R"}]})");
  EXPECT_EQ(ReadChatTemplate(model_.path())->source, "D");
  EXPECT_EQ(ReadChatTemplate(model_.path())->tool_source, "U");
}

TEST_F(ChatTemplateFileTest, AFileOfItsOwnGoesFirstAndWhatIsAskedForBeforeIt) {
  model_.Write("tokenizer_config.json",
               R"({"bos_token": "<s>", "chat_template": [{"name": "tool_use", "template": "U"}]})");
  model_.Write("chat_template.jinja", "J");
  model_.Write("other", "O");
  EXPECT_EQ(ReadChatTemplate(model_.path())->source, "J");
  const auto other = ReadChatTemplate(model_.path(), model_ / "other");
  EXPECT_EQ(other->source, "O");
  EXPECT_EQ(other->tool_source, "");
  EXPECT_EQ(other->special_tokens.at("bos_token"), "<s>");
  EXPECT_EQ(ReadChatTemplate(model_.path(), model_ / "none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(ChatTemplateFileTest, WhatIsMalformedIsNamed) {
  model_.Write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(Error(), HasSubstr("chat_template is 3"));
  model_.Write("tokenizer_config.json", R"({"chat_template": [{"name": "default"}]})");
  EXPECT_THAT(Error(), HasSubstr("{\"name\":\"default\"}"));
  model_.Write("tokenizer_config.json", "[");
  EXPECT_THAT(Error(), HasSubstr("tokenizer_config.json"));
  model_.Write("tokenizer_config.json", "{}");
  model_.Write("chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(Error(), HasSubstr("1048576"));
}

}  // namespace
}  // namespace lockstep
