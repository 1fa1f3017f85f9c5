// Texts in pieces: special tokens are markup's alone.
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/tokenizer/markup_ranges.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

using TokenIds = std::vector<int32_t>;
using ::testing::ElementsAre;

TEST(MarkupRangesTest, CoverWhatIsMarkupFromEndToEnd) {
  MarkupRanges ranges;
  ranges.Add(2, 5);
  ranges.Add(5, 6);  // goes on with it
  ranges.Add(9, 12);
  EXPECT_TRUE(ranges.Covers(2, 6));
  EXPECT_TRUE(ranges.Covers(10, 11));
  EXPECT_FALSE(ranges.Covers(1, 3));
  EXPECT_FALSE(ranges.Covers(5, 10));
  EXPECT_FALSE(ranges.Covers(12, 13));
  EXPECT_TRUE(ranges.Overlaps(0, 3));
  EXPECT_FALSE(ranges.Overlaps(6, 9));
  EXPECT_FALSE(MarkupRanges::None().Overlaps(0, 99));
  EXPECT_TRUE(MarkupRanges::All().Covers(0, 99));
}

class PiecesTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Tokenizer> Demo() {
    auto tokenizer =
        Tokenizer::Load(std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "deploy/demo/model");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }
  TokenIds Pieces(const std::vector<TextPiece>& pieces) const {
    const auto ids = tokenizer_->EncodePieces(pieces);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(TokenIds());
  }
  TokenIds Whole(const std::string& text, bool parses) const {
    return *tokenizer_->Encode(text, {.add_special_tokens = false, .parse_special_tokens = parses});
  }

  std::unique_ptr<Tokenizer> tokenizer_ = Demo();
  const int32_t end_ = *tokenizer_->TokenId("<|end|>");
};

TEST_F(PiecesTest, MarkupHasSpecialTokensAndTextHasNone) {
  EXPECT_THAT(Pieces({{"<|end|>", true}}), ElementsAre(end_));
  EXPECT_EQ(Pieces({{"<|end|>", false}}), Whole("<|end|>", false));
  EXPECT_TRUE(Pieces({}).empty());
}

TEST_F(PiecesTest, NoTokenIsMadeOfBoth) {
  for (size_t cut = 1; cut < 7; ++cut) {
    const std::string marker = "<|end|>";
    const TokenIds text = Whole(marker, false);
    EXPECT_EQ(Pieces({{marker.substr(0, cut), true}, {marker.substr(cut), false}}), text);
    EXPECT_EQ(Pieces({{marker.substr(0, cut), false}, {marker.substr(cut), true}}), text);
    EXPECT_THAT(Pieces({{marker.substr(0, cut), true}, {marker.substr(cut), true}}),
                ElementsAre(end_));
  }
  EXPECT_EQ(Pieces({{"<", false}, {"<|end|>", true}}).back(), end_);
}

// Merges do not stop at a piece's end: as the whole text, where nothing in it is a marker.
TEST_F(PiecesTest, TextGoesOnOverPieces) {
  const std::string text = "<|user|>\n\nMary gave the red ball to Tom.\n<|end|> 12 + 30";
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<TextPiece> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 12;
      pieces.push_back({text.substr(at, size), true});
      at += size;
    }
    EXPECT_EQ(Pieces(pieces), Whole(text, true));
    for (TextPiece& piece : pieces) piece.is_markup = false;
    EXPECT_EQ(Pieces(pieces), Whole(text, false));
  }
  EXPECT_EQ(Pieces({{"<|user|>Ma", true}, {"ry gave", false}, {"<|end|>", true}}),
            Whole("<|user|>Mary gave<|end|>", true));
}

TEST_F(PiecesTest, HalfACharacterIsNone) {
  EXPECT_EQ(Pieces({{"\xC3", false}, {"\xA9", true}}), Whole("\xC3\xA9", false));
  const std::vector<TextPiece> half = {{"\xC3", false}, {"a", true}};
  EXPECT_EQ(tokenizer_->EncodePieces(half).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::testing
