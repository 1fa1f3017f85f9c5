// Decoding token by token says exactly what decoding at once says.
#include <random>

#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/utf8.h"
#include "tests/model/tokenizer/small_tokenizer.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

// Also checks that each part by itself is valid UTF-8.
std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool include_special, bool is_continuation) {
  IncrementalDetokenizer detokenizer(tokenizer, include_special, is_continuation);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Add(id);
    EXPECT_EQ(FindInvalidUtf8(part), std::string::npos);
    text += part;
  }
  const std::string rest = detokenizer.Finish();
  EXPECT_EQ(FindInvalidUtf8(rest), std::string::npos);
  return text + rest;
}

void ExpectStreamsLikeDecode(const Tokenizer& tokenizer, const std::vector<int32_t>& candidates) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<int32_t> ids(random() % 12);
    for (int32_t& id : ids) id = candidates[random() % candidates.size()];
    const bool include_special = random() % 2 == 0;
    ASSERT_EQ(Stream(tokenizer, ids, include_special, false), Text(tokenizer, ids, include_special))
        << Json(ids);
  }
}

std::vector<int32_t> AllIds(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsValid(id)) ids.push_back(id);
  }
  return ids;
}

// Bytes that make and break characters, and a few ordinary tokens.
std::vector<int32_t> Hostile(int32_t first_byte_id, std::vector<int32_t> others) {
  for (const int byte : {0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82, 0xAC, 0xC3, 0xA9, 0x41, 0xFF, 0x20}) {
    others.push_back(first_byte_id + byte);
  }
  return others;
}

TEST(IncrementalDetokenizer, ConcatenatesToTheFullDecode) {
  const auto byte_level = MakeTokenizer(SmallByteLevel());
  ExpectStreamsLikeDecode(*byte_level, AllIds(*byte_level));
  ExpectStreamsLikeDecode(*byte_level, Hostile(0, {256, 258, 300}));
  const auto sentence_piece = MakeTokenizer(SmallSentencePiece());
  ExpectStreamsLikeDecode(*sentence_piece, AllIds(*sentence_piece));
  ExpectStreamsLikeDecode(*sentence_piece, Hostile(100, {0, 1, 2, 3, 3, 9, 15}));
}

TEST(IncrementalDetokenizer, ConcatenatesToTheFullDecodeUnderMetaspace) {
  Json json = SmallSentencePiece();
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}};
  const auto tokenizer = MakeTokenizer(json);
  ExpectStreamsLikeDecode(*tokenizer, {0, 1, 3, 4, 8, 9, 15});
  json["decoder"]["prepend_scheme"] = "never";
  ExpectStreamsLikeDecode(*MakeTokenizer(json), {0, 1, 3, 4, 8, 9, 15});
}

TEST(IncrementalDetokenizer, StripsAsManyAsTheDecoderSays) {
  Json json = SmallSentencePiece();
  json["decoder"]["decoders"][3]["start"] = 2;
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_EQ(Text(*tokenizer, {3, 3, 9, 9}), " ab ab");
  ExpectStreamsLikeDecode(*tokenizer, {1, 3, 3, 9, 4});
  json["decoder"]["decoders"][3]["content"] = "é";
  ExpectStreamsLikeDecode(*MakeTokenizer(json), {15, 15, 100 + 0xC3, 100 + 0xA9, 4, 1});
}

TEST(IncrementalDetokenizer, ConcatenatesToTheFullDecodeOfLlama3) {
  const auto directory = SharedAssets() / "tokenizers/llama3";
  SKIP_WITHOUT_ASSET(directory);
  const auto tokenizer = Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ExpectStreamsLikeDecode(**tokenizer, AllIds(**tokenizer));
}

TEST(IncrementalDetokenizer, HoldsBackIncompleteCharactersOnly) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  IncrementalDetokenizer detokenizer(*tokenizer, false, false);
  EXPECT_EQ(detokenizer.Add(0xE2), "");
  EXPECT_EQ(detokenizer.Add(0x82), "");
  EXPECT_EQ(detokenizer.Add(300), "");  // a special token left out does not come between
  EXPECT_EQ(detokenizer.Add(0xAC), "€");
  EXPECT_EQ(detokenizer.Add(0xF0), "");
  EXPECT_EQ(detokenizer.Add(257),
            "\uFFFD"
            "ab");
  EXPECT_EQ(detokenizer.Add(0xC3), "");
  EXPECT_EQ(detokenizer.Finish(), "\uFFFD");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST(IncrementalDetokenizer, ContinuationKeepsTheSpaceAfterThePrompt) {
  const auto tokenizer = MakeTokenizer(SmallSentencePiece());
  EXPECT_EQ(Stream(*tokenizer, {9, 9}, false, false), "ab ab");
  EXPECT_EQ(Stream(*tokenizer, {9, 9}, false, true), " ab ab");
}

TEST(IncrementalDetokenizer, PromptAndContinuationMakeTheFullDecode) {
  const auto tokenizer = MakeTokenizer(SmallSentencePiece());
  const std::vector<int32_t> candidates = AllIds(*tokenizer);
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    // The prompt ends in a whole character, else its text is not the start of the full text.
    std::vector<int32_t> prompt = {1, 8};
    std::vector<int32_t> ids(random() % 8);
    for (int32_t& id : ids) id = candidates[random() % candidates.size()];
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), ids.begin(), ids.end());
    ASSERT_EQ(Text(*tokenizer, prompt) + Stream(*tokenizer, ids, false, true),
              Text(*tokenizer, all));
  }
}

TEST(IncrementalDetokenizer, UnknownIdsAddNothing) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  EXPECT_EQ(Stream(*tokenizer, {'a', -1, 299, INT32_MAX, 'b'}, true, false), "ab");
}

// Examples of the Unicode Standard, section 3.9, tables 3-8 to 3-11.
TEST(Decode, ReplacesEachMaximalInvalidPartOnce) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  const std::pair<std::vector<int32_t>, int> cases[] = {
      {{0xC0, 0xAF, 0xE0, 0x80, 0xBF, 0xF0, 0x81, 0x82, 0x41}, 8},
      {{0xED, 0xA0, 0x80, 0xED, 0xBF, 0xBF, 0xED, 0xAF, 0x41}, 8},
      {{0xF4, 0x91, 0x92, 0x93, 0xFF, 0x41, 0x80, 0xBF, 0x42}, 7},
      {{0xE1, 0x80, 0xE2, 0xF0, 0x91, 0x92, 0xF1, 0xBF, 0x41}, 4},
      {{0xF0, 0x9F, 0x98}, 1}};
  for (const auto& [ids, num_replaced] : cases) {
    std::string text = Text(*tokenizer, ids);
    int found = 0;
    for (size_t at; (at = text.find("\uFFFD")) != std::string::npos; ++found) text.erase(at, 3);
    EXPECT_EQ(found, num_replaced) << Json(ids);
    EXPECT_LE(text.size(), 2u);  // the A and the B
  }
}

}  // namespace
}  // namespace lockstep::testing
