// Normalization form C against the Unicode Standard's own examples (UAX #15;
// NormalizationTest.txt).
#include "model/tokenizer/nfc.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/model/tokenizer/small_tokenizer.h"

namespace lockstep {
namespace {

TEST(Nfc, TokenizersThatAskForItEncodeTextInIt) {
  nlohmann::json json = testing::SmallByteLevel();
  EXPECT_EQ(testing::Ids(*testing::MakeTokenizer(json), "e\u0301").size(), 3u);
  json["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = testing::MakeTokenizer(json);
  EXPECT_EQ(testing::Ids(*tokenizer, "e\u0301"), (std::vector<int32_t>{0xc3, 0xa9}));
}

TEST(Nfc, TextThatIsInItStays) {
  for (const char* text : {"", "plain", "caf\u00e9", "\u8a9e\u00e9", "\uac01", "\U0001f600"}) {
    EXPECT_EQ(ToNfc(text), text);
  }
}

TEST(Nfc, MarksJoinTheirLetter) {
  EXPECT_EQ(ToNfc("e\u0301"), "\u00e9");
  EXPECT_EQ(ToNfc("x\u00eb\u0301"), "x\u00eb\u0301");
  EXPECT_EQ(ToNfc("s\u0323\u0307"), "\u1e69");
  EXPECT_EQ(ToNfc("s\u0307\u0323"), "\u1e69");
  EXPECT_EQ(ToNfc("\u1e0b\u0323"), "\u1e0d\u0307");
  EXPECT_EQ(ToNfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(ToNfc("\u0301e"), "\u0301e");
}

TEST(Nfc, CharactersThatStandForOthersBecomeThose) {
  EXPECT_EQ(ToNfc("\u212b\u2126"), "\u00c5\u03a9");
  EXPECT_EQ(ToNfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(ToNfc("\U0001d15e"), "\U0001d157\U0001d165");
  EXPECT_EQ(ToNfc("\ufb01"), "\ufb01");  // a ligature only looks like two letters
}

TEST(Nfc, MarksOfOneClassKeepTheirOrderAndBlockEachOther) {
  EXPECT_EQ(ToNfc("a\u0302\u0301\u0323"), "\u1ead\u0301");
  EXPECT_EQ(ToNfc("a\u0301\u0302"), "\u00e1\u0302");
}

// As Hugging Face's tokenizers 0.23.3 have it: U+0EBA came with Unicode 12.
TEST(Nfc, MarksThatCameAfterUnicode9HaveNoClass) {
  for (const char* text : {"\u0e81\u0ec8\u0eba", "a\u1abf\u0301", "\u1df6\u0301\u0300",
                           "\U00011938", "\U00011935\U00011930"}) {
    EXPECT_EQ(ToNfc(text), text);
  }
  EXPECT_EQ(ToNfc("e\u0301\u0eba\u0323\u0301\u0323"), "\u00e9\u0eba\u0323\u0323\u0301");
}

// Two million marks, of two classes in turn.
TEST(Nfc, AHeapOfMarksIsOrderedAsFastAsAnyText) {
  std::string marks = "a";
  std::string below;
  std::string above;
  for (int i = 0; i < 1'000'000; ++i) {
    marks += "\u0315\u0316";
    above += "\u0315";
    below += "\u0316";
  }
  EXPECT_TRUE(ToNfc(marks) == "a" + below + above);
}

}  // namespace
}  // namespace lockstep
