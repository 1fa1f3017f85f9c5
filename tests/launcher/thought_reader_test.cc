#include "launcher/client/thought_reader.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

// "THOUGHT|ANSWER" of a text that ends there.
std::string Split(v1::Thought thought, absl::string_view text) {
  ThoughtReader reader(thought);
  reader.Read(text, /*has_ended=*/true);
  return absl::StrCat(reader.thought(text), "|", reader.answer(text));
}

TEST(ThoughtReaderTest, ATextWithoutThoughtsIsAnAnswer) {
  for (const char* text : {"", "Hi", "<think>a</think>b", "</think>", "\n<think>"}) {
    EXPECT_EQ(Split(v1::THOUGHT_NONE, text), absl::StrCat("|", text));
  }
}

TEST(ThoughtReaderTest, AThoughtThatMayComeIsMarked) {
  const auto split = [](absl::string_view text) { return Split(v1::THOUGHT_ALLOWED, text); };
  EXPECT_EQ(split("<think>\nSo. \n\n</think>\n\n Yes.\n"), "So. | Yes.\n");
  EXPECT_EQ(split("\n <think>So</think>Yes</think>"), "So|Yes</think>");
  EXPECT_EQ(split("<think></think>\n\nYes"), "|Yes");
  EXPECT_EQ(split("<think>\n\n</think>\n\nYes"), "|Yes");
  EXPECT_EQ(split("\nYes <think>No</think>"), "|\nYes <think>No</think>");
  EXPECT_EQ(split("So</think>Yes"), "|So</think>Yes") << "nobody said that it had begun";
  EXPECT_EQ(split(""), "|");
}

TEST(ThoughtReaderTest, AThoughtThatHasBegunEndsAtItsMarker) {
  const auto split = [](absl::string_view text) { return Split(v1::THOUGHT_BEGUN, text); };
  EXPECT_EQ(split("So.\n</think>\n\nYes."), "So.|Yes.");
  EXPECT_EQ(split("\n</think>Yes."), "|Yes.");
  EXPECT_EQ(split("</think>"), "|");
  EXPECT_EQ(split(""), "|");
}

TEST(ThoughtReaderTest, WhatIsCutOffIsAThoughtStill) {
  EXPECT_EQ(Split(v1::THOUGHT_BEGUN, "So\n"), "So|");
  EXPECT_EQ(Split(v1::THOUGHT_BEGUN, "So</thi"), "So</thi|");
  EXPECT_EQ(Split(v1::THOUGHT_ALLOWED, "<think>So"), "So|");
  EXPECT_EQ(Split(v1::THOUGHT_ALLOWED, "<thi"), "|<thi");
  EXPECT_EQ(Split(v1::THOUGHT_BEGUN, "So</think>\n"), "So|");
}

// In pieces of every size: what was told stays, and all comes to what the whole text holds.
TEST(ThoughtReaderTest, WhatIsTellableOfATextThatGrowsIsSo) {
  const std::vector<std::string> texts = {
      "<think>\nSo.\n\nOr <b> </b> </th </think>\n\nYes\n</think>",
      "<think>",
      "\n\n <thin",
      "So</think>",
      "\n\n",
      "</think>\n\n\nYes <think>a</think>"};
  for (const v1::Thought thought : {v1::THOUGHT_NONE, v1::THOUGHT_ALLOWED, v1::THOUGHT_BEGUN}) {
    for (const std::string& text : texts) {
      for (size_t step = 1; step <= text.size(); ++step) {
        ThoughtReader reader(thought);
        std::string told_thought;
        std::string told_answer;
        const auto read = [&](size_t size, bool has_ended) {
          const absl::string_view begun = absl::string_view(text).substr(0, size);
          reader.Read(begun, has_ended);
          EXPECT_EQ(reader.thought(begun).substr(0, told_thought.size()), told_thought) << text;
          EXPECT_EQ(reader.answer(begun).substr(0, told_answer.size()), told_answer) << text;
          told_thought = std::string(reader.thought(begun));
          told_answer = std::string(reader.answer(begun));
        };
        for (size_t size = step; size < text.size(); size += step) read(size, false);
        read(text.size(), true);
        EXPECT_EQ(absl::StrCat(told_thought, "|", told_answer), Split(thought, text)) << step;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
