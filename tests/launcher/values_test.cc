#include "launcher/cli/values.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostPortTest, ReadsBackWhatItPrints) {
  for (const char* text : {"127.0.0.1:50051", "localhost:0", "[::1]:65535", "node-7.example:1"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), text);
  }
}

TEST(HostPortTest, RefusesWhatIsNotAnAddressAndShowsIt) {
  for (const char* text :
       {"", "50051", ":50051", "host:", "host:65536", "host:-1", "host:x", "::1:5"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(HostPortTest, APortAloneIsToldWhatToSay) {
  EXPECT_THAT(std::string(ParseHostPort("9400").status().message()),
              HasSubstr("the host is missing, say 127.0.0.1:9400"));
}

TEST(TokenIdsTest, TakesCommasSpacesAndBrackets) {
  EXPECT_THAT(*ParseTokenIds("1,2, 3"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*ParseTokenIds("[4 5\n6]"), ElementsAre(4, 5, 6));
  EXPECT_THAT(*ParseTokenIds(" [ 7,  8 ] "), ElementsAre(7, 8));
}

TEST(TokenIdsTest, RefusesWhatIsNotAnId) {
  for (const char* text : {"", " , ", "[]", "1,-2", "1,x", "2147483648", "1.5", "1,2,,3", ",1",
                           "1,", "1, ,2", "[1", "1]", "[[1]]"}) {
    EXPECT_FALSE(ParseTokenIds(text).ok()) << text;
  }
}

TEST(LengthRangeTest, IsOneNumberOrTwo) {
  EXPECT_EQ(ParseLengthRange("128")->min, 128);
  EXPECT_EQ(ParseLengthRange("128")->max, 128);
  EXPECT_EQ(ParseLengthRange("4:9")->min, 4);
  EXPECT_EQ(ParseLengthRange("4:9")->max, 9);
  for (const char* text : {"", "0", "9:4", "1:2:3", "a", "4:", ":4", "-1:4"}) {
    EXPECT_FALSE(ParseLengthRange(text).ok()) << text;
  }
}

TEST(LogitBiasTest, IsTokenAndFiniteNumber) {
  EXPECT_EQ(*ParseLogitBias("42:-0.5"), (std::pair<int32_t, float>{42, -0.5f}));
  for (const char* text : {"", "42", "42:", ":1", "-1:1", "42:nan", "42:inf", "x:1"}) {
    EXPECT_FALSE(ParseLogitBias(text).ok()) << text;
  }
}

TEST(FormatTest, NumbersReadWell) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(FormatSeconds(0.0854), "85 ms");
  EXPECT_EQ(FormatSeconds(1.234), "1.23 s");
  EXPECT_EQ(FormatSeconds(185.0), "3 min 05 s");
  EXPECT_EQ(FormatMilliseconds(0.7512), "0.751 ms");
  EXPECT_EQ(FormatMilliseconds(66.83), "66.8 ms");
  EXPECT_EQ(FormatMilliseconds(1570.6), "1571 ms");
}

TEST(TextTest, AnErrorIsOneLine) { EXPECT_EQ(OneLine("\n a\r\nb\x1b[31m\n"), "a  b [31m"); }

TEST(TextTest, TerminalGetsNoControlSequences) {
  EXPECT_EQ(TerminalText("a\n\tb"), "a\n\tb");
  EXPECT_EQ(TerminalText("\x1b[2J"), "\xEF\xBF\xBD[2J");
  EXPECT_EQ(TerminalText("\xC2\x9B"
                         "2J"),
            "\xEF\xBF\xBD"
            "2J");  // C1 control sequence introducer
  EXPECT_EQ(TerminalText("caf\xC3\xA9"), "caf\xC3\xA9");
}

TEST(Utf8Test, FindsTheFirstByteThatIsNotText) {
  EXPECT_EQ(FirstInvalidUtf8("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x99\x82"), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("ab\xff"), 2u);
  EXPECT_EQ(FirstInvalidUtf8("a\xC3"), 1u);             // cut short
  EXPECT_EQ(FirstInvalidUtf8("\xC0\x80"), 0u);          // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(FirstInvalidUtf8("\xF4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(ValidUtf8("a\xff"
                      "b"),
            "a\xEF\xBF\xBD"
            "b");
}

TEST(TextTest, ExcerptEndsAtACharacter) {
  EXPECT_EQ(Excerpt("short", 10), "short");
  EXPECT_EQ(Excerpt("ab\xC3\xA9"
                    "d",
                    3),
            "ab...");
  EXPECT_EQ(Excerpt("ab\xC3\xA9"
                    "d",
                    4),
            "ab\xC3\xA9...");
}

}  // namespace
}  // namespace lockstep
