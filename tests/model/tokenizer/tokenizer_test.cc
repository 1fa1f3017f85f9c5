// Encoding and decoding of whole texts.
#include "model/tokenizer/tokenizer.h"

#include <fstream>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/tokenizer/utf8.h"
#include "tests/model/tokenizer/small_tokenizer.h"
#include "tests/support/assets.h"
#include "tests/support/read_file.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr EncodeOptions kBare{.add_special_tokens = false};
constexpr EncodeOptions kParsing{.add_special_tokens = false, .parse_special_tokens = true};

std::filesystem::path Llama3Directory() { return SharedAssets() / "tokenizers/llama3"; }
std::filesystem::path StoriesDirectory() { return SharedAssets() / "models/stories260K"; }

std::unique_ptr<Tokenizer> LoadOrDie(const std::filesystem::path& directory) {
  auto tokenizer = Tokenizer::Load(directory);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(Llama3, EveryVectorEncodesAndDecodes) {
  SKIP_WITHOUT_ASSET(Llama3Directory());
  const auto tokenizer = LoadOrDie(Llama3Directory());
  std::ifstream file(Llama3Directory() / "vectors.jsonl");
  int num_vectors = 0;
  for (std::string line; std::getline(file, line); ++num_vectors) {
    const Json vector = Json::parse(line);
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(Ids(*tokenizer, text), ids) << line;
    EXPECT_EQ(Text(*tokenizer, ids), text) << line;
  }
  EXPECT_EQ(num_vectors, 600);
}

TEST(Llama3, BosComesFromThePostProcessor) {
  SKIP_WITHOUT_ASSET(Llama3Directory());
  const auto tokenizer = LoadOrDie(Llama3Directory());
  EXPECT_EQ(tokenizer->bos_token_id(), 128000);
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  EXPECT_THAT(Ids(*tokenizer, "", {}), ElementsAre(128000));
  EXPECT_EQ(Ids(*tokenizer, "Hello", {}).front(), 128000);
  EXPECT_EQ(Text(*tokenizer, Ids(*tokenizer, "Hello", {})), "Hello");
}

TEST(Llama3, SpecialTokensInTextAreTextUnlessAsked) {
  SKIP_WITHOUT_ASSET(Llama3Directory());
  const auto tokenizer = LoadOrDie(Llama3Directory());
  const std::string text = "a<|eot_id|>b";
  const auto plain = Ids(*tokenizer, text, kBare);
  for (const int32_t id : plain) EXPECT_FALSE(tokenizer->IsSpecial(id));
  EXPECT_EQ(Text(*tokenizer, plain), text);
  EXPECT_THAT(Ids(*tokenizer, text, kParsing), ElementsAre(64, 128009, 65));
  EXPECT_EQ(Text(*tokenizer, {64, 128009, 65}), "ab");
  EXPECT_EQ(Text(*tokenizer, {64, 128009, 65}, true), text);
}

TEST(Stories, PromptAndGreedyTokensMatchTheReference) {
  SKIP_WITHOUT_ASSET(StoriesDirectory());
  const auto tokenizer = LoadOrDie(StoriesDirectory());
  EXPECT_THAT(Ids(*tokenizer, "Once upon a time", {}), ElementsAre(1, 403, 407, 261, 378));
  const Json golden = Json::parse(std::ifstream(StoriesDirectory() / "golden.json"));
  const std::string expected = ReadFile(StoriesDirectory() / "expected_greedy_256.txt");
  ASSERT_FALSE(golden["cases"].empty());
  for (const Json& one : golden["cases"]) {
    auto ids = one["prompt"].get<std::vector<int32_t>>();
    const auto generated = one["greedy_tokens"].get<std::vector<int32_t>>();
    ids.insert(ids.end(), generated.begin(), generated.end());
    const std::string text = Text(*tokenizer, ids);
    EXPECT_EQ(text, expected.substr(0, text.size()));
  }
}

TEST(Tokenizer, RunsOfAMillionCharactersKeepEveryCharacter) {
  SKIP_WITHOUT_ASSET(Llama3Directory());
  SKIP_WITHOUT_ASSET(StoriesDirectory());
  const auto llama3 = LoadOrDie(Llama3Directory());
  const auto stories = LoadOrDie(StoriesDirectory());
  for (const std::string_view unit : {" ", "a", "\n", "\xC2\xA0", "😀", " \n"}) {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += unit;
    text += 'z';  // makes the regex give back the last space
    EXPECT_TRUE(Text(*llama3, Ids(*llama3, text)) == text) << unit;
    EXPECT_TRUE(Text(*stories, Ids(*stories, text)) == text) << unit;
  }
}

std::string RandomText(std::mt19937& random) {
  static constexpr uint32_t kEnds[] = {0x80, 0x100, 0x800, 0x3000, 0xD800, 0x10FFFF};
  std::string text;
  const int length = static_cast<int>(random() % 40);
  for (int i = 0; i < length; ++i) {
    uint32_t code_point = static_cast<uint32_t>(random()) % kEnds[random() % 6];
    const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
    // U+2581 is SentencePiece's space and comes back as one.
    if (surrogate || code_point == 0x2581) code_point = ' ';
    const int repeat = random() % 8 == 0 ? 9 : 1;
    for (int j = 0; j < repeat; ++j) AppendCodePoint(code_point, text);
  }
  return text;
}

TEST(Tokenizer, RandomTextRoundTrips) {
  SKIP_WITHOUT_ASSET(Llama3Directory());
  SKIP_WITHOUT_ASSET(StoriesDirectory());
  std::mt19937 random(17);
  for (const auto& directory : {Llama3Directory(), StoriesDirectory()}) {
    const auto tokenizer = LoadOrDie(directory);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = RandomText(random);
      EXPECT_EQ(Text(*tokenizer, Ids(*tokenizer, text)), text);
    }
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  const std::vector<int32_t> expected = Ids(*tokenizer, "ab ab 12 ab");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) EXPECT_EQ(Ids(*tokenizer, "ab ab 12 ab"), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SentencePiece, MergesByRankAfterPrependingTheSpace) {
  const auto tokenizer = MakeTokenizer(SmallSentencePiece());
  EXPECT_THAT(Ids(*tokenizer, ""), IsEmpty());
  EXPECT_THAT(Ids(*tokenizer, "", {}), ElementsAre(1));
  EXPECT_THAT(Ids(*tokenizer, "abc"), ElementsAre(9, 6));       // ▁ab c: rank 1 before rank 4
  EXPECT_THAT(Ids(*tokenizer, "cabc"), ElementsAre(3, 6, 11));  // ▁ c abc
  EXPECT_THAT(Ids(*tokenizer, " ab"), ElementsAre(3, 9));
}

TEST(SentencePiece, UnknownCharactersBecomeBytes) {
  const auto tokenizer = MakeTokenizer(SmallSentencePiece());
  EXPECT_THAT(Ids(*tokenizer, "éü"), ElementsAre(3, 15, 100 + 0xC3, 100 + 0xBC));
  EXPECT_EQ(Text(*tokenizer, {3, 15, 100 + 0xC3, 100 + 0xBC}), "éü");
}

TEST(SentencePiece, OneLeadingSpaceIsStrippedAtTheStartOnly) {
  const auto tokenizer = MakeTokenizer(SmallSentencePiece());
  EXPECT_EQ(Text(*tokenizer, {9, 9}), "ab ab");
  EXPECT_EQ(Text(*tokenizer, {3, 9}), " ab");
  EXPECT_EQ(Text(*tokenizer, {1, 9}), "ab");
  EXPECT_EQ(Text(*tokenizer, {1, 9}, true), "<s> ab");
}

TEST(SentencePiece, WithoutByteFallbackRunsFuseIntoOneUnknown) {
  Json json = SmallSentencePiece();
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(Ids(*MakeTokenizer(json), "aüöaü"), ElementsAre(8, 0, 4, 0));
  json["model"]["fuse_unk"] = false;
  EXPECT_THAT(Ids(*MakeTokenizer(json), "aüöaü"), ElementsAre(8, 0, 0, 4, 0));
}

TEST(SentencePiece, CharacterThatCannotBeExpressedIsAnError) {
  Json json = SmallSentencePiece();
  json["model"]["byte_fallback"] = false;
  json["model"]["unk_token"] = nullptr;
  const auto ids = MakeTokenizer(json)->Encode("a\xC3\xBC", kBare);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("U+00FC"));
}

TEST(SentencePiece, SpecialTokensInTextAreTextUnlessAsked) {
  const auto tokenizer = MakeTokenizer(SmallSentencePiece());
  EXPECT_THAT(Ids(*tokenizer, "a<s>"), ElementsAre(8, 12, 14, 13));
  EXPECT_THAT(Ids(*tokenizer, "a<s>b", kParsing), ElementsAre(8, 1, 3, 5));
}

TEST(Metaspace, PrependSchemeDecidesWhichTextsGetTheSpace) {
  Json json = SmallSentencePiece();
  json["normalizer"] = nullptr;
  const auto with = [&](const char* scheme, bool split) {
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
    json["decoder"] = json["pre_tokenizer"];
    return MakeTokenizer(json);
  };
  EXPECT_THAT(Ids(*with("always", true), "ab<s>ab", kParsing), ElementsAre(9, 1, 9));
  EXPECT_THAT(Ids(*with("first", true), "ab<s>ab", kParsing), ElementsAre(9, 1, 7));
  EXPECT_THAT(Ids(*with("first", true), "<s>ab", kParsing), ElementsAre(1, 7));
  EXPECT_THAT(Ids(*with("never", true), "ab<s>ab", kParsing), ElementsAre(7, 1, 7));
  EXPECT_THAT(Ids(*with("always", true), " ab", kParsing), ElementsAre(9));
  EXPECT_EQ(Text(*with("always", false), {9, 9}), "ab ab");
  EXPECT_EQ(Text(*with("never", false), {9, 9}), " ab ab");
}

TEST(ByteLevel, RegexCutsBeforeMerging) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  EXPECT_THAT(Ids(*tokenizer, "ab ab"), ElementsAre(257, 258));
  EXPECT_THAT(Ids(*tokenizer, " a1"), ElementsAre(256, '1'));
  EXPECT_THAT(Ids(*tokenizer, "é"), ElementsAre(0xC3, 0xA9));
  EXPECT_EQ(Text(*tokenizer, {257, 258, 0xC3, 0xA9}), "ab abé");
}

TEST(ByteLevel, PrefixSpaceIsAddedOncePerPiece) {
  Json json = SmallByteLevel();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_THAT(Ids(*tokenizer, "ab"), ElementsAre(258));
  EXPECT_THAT(Ids(*tokenizer, " ab"), ElementsAre(258));
  EXPECT_THAT(Ids(*tokenizer, ""), IsEmpty());
}

TEST(ByteLevel, IgnoreMergesTakesWholePiecesFirst) {
  Json json = SmallByteLevel();
  json["model"]["vocab"]["Ġbb"] = 259;
  EXPECT_THAT(Ids(*MakeTokenizer(json), " bb"), ElementsAre(' ', 'b', 'b'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(Ids(*MakeTokenizer(json), " bb"), ElementsAre(259));
}

TEST(Digits, AreCutOneByOneOrInRuns) {
  Json json = SmallByteLevel();
  json["model"]["vocab"]["11"] = 259;
  json["model"]["merges"].push_back("1 1");
  Json& steps = json["pre_tokenizer"]["pretokenizers"];
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  steps.insert(steps.begin(), digits);
  EXPECT_THAT(Ids(*MakeTokenizer(json), "11"), ElementsAre('1', '1'));
  steps[0]["individual_digits"] = false;
  EXPECT_THAT(Ids(*MakeTokenizer(json), "11"), ElementsAre(259));
}

Json WithAdded(Json json, std::vector<Json> tokens) {
  for (Json& token : tokens) json["added_tokens"].push_back(std::move(token));
  return json;
}

TEST(AddedTokens, OrdinaryOnesMatchAlwaysAndTheLongestWins) {
  const auto tokenizer = MakeTokenizer(
      WithAdded(SmallByteLevel(), {{{"id", 301}, {"content", "[x]"}, {"normalized", false}},
                                   {{"id", 302}, {"content", "[x]s"}, {"normalized", false}}}));
  EXPECT_THAT(Ids(*tokenizer, "a[x]sb[x]"), ElementsAre('a', 302, 'b', 301));
  EXPECT_FALSE(tokenizer->IsSpecial(301));
  EXPECT_EQ(Text(*tokenizer, {'a', 302, 'b', 301}), "a[x]sb[x]");
}

TEST(AddedTokens, TakeTheWhiteSpaceBesideThem) {
  const auto tokenizer = MakeTokenizer(
      WithAdded(SmallByteLevel(), {{{"id", 301}, {"content", "[l]"}, {"lstrip", true}},
                                   {{"id", 302}, {"content", "[r]"}, {"rstrip", true}}}));
  EXPECT_THAT(Ids(*tokenizer, "a \u3000[l] b"), ElementsAre('a', 301, ' ', 'b'));
  EXPECT_THAT(Ids(*tokenizer, "a [r]\u3000 b"), ElementsAre('a', ' ', 302, 'b'));
  EXPECT_THAT(Ids(*tokenizer, "[r]  [l]"), ElementsAre(302, 301));
}

// As tokenizers 0.23 does.
TEST(AddedTokens, WhatFollowsOneInTakenWhiteSpaceIsText) {
  const auto tokenizer = MakeTokenizer(WithAdded(
      SmallByteLevel(),
      {{{"id", 301}, {"content", "[r]"}, {"rstrip", true}}, {{"id", 302}, {"content", " "}}}));
  EXPECT_THAT(Ids(*tokenizer, "[r] \n"), ElementsAre(301, 302, '\n'));
  EXPECT_THAT(Ids(*tokenizer, "[r] \n b"), ElementsAre(301, 302, '\n', 302, 'b'));
  EXPECT_THAT(Ids(*tokenizer, "[r]\n\tb"), ElementsAre(301, 'b'));
}

TEST(AddedTokens, NormalizedOnesAreSoughtInNormalizedText) {
  const auto tokenizer = MakeTokenizer(
      WithAdded(SmallSentencePiece(), {{{"id", 50}, {"content", "c b"}, {"normalized", true}}}));
  // Its own content is normalized too, to "▁c▁b".
  EXPECT_THAT(Ids(*tokenizer, "a c b"), ElementsAre(8, 50));
  EXPECT_THAT(Ids(*tokenizer, "ac b"), ElementsAre(8, 6, 3, 5));
}

TEST(Tokenizer, InvalidUtf8IsRefusedWithItsOffset) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  const std::pair<std::string, int> cases[] = {
      {"\xFF", 0},          {"abc\x80", 3},          {"a\xC3", 1},        {"a\xE2\x82", 1},
      {"\xC0\x80", 0},      {"é\xED\xA0\x80", 2},    {"12345678\xF5", 8}, {"x\xF4\x90\x80\x80", 1},
      {"x\xE0\x9F\xBF", 1}, {"x\xF0\x8F\xBF\xBF", 1}};
  for (const auto& [text, offset] : cases) {
    const auto ids = tokenizer->Encode(text, kBare);
    ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(ids.status().message()), EndsWith("byte " + std::to_string(offset)))
        << ids.status();
  }
}

TEST(Tokenizer, UnknownIdsAreRefused) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  for (const int32_t id : {-1, 259, 301, INT32_MAX, INT32_MIN}) {
    const std::vector<int32_t> ids = {'a', id};
    EXPECT_EQ(tokenizer->Decode(ids, true).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(tokenizer->IsValid(id));
    EXPECT_FALSE(tokenizer->IsSpecial(id));
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
  }
}

TEST(Tokenizer, TextBeyondTheLimitIsRefusedBeforeItIsMade) {
  constexpr size_t kTokenBytes = 8192;
  nlohmann::json json = SmallByteLevel();
  json["added_tokens"].push_back(
      {{"id", 301}, {"content", std::string(kTokenBytes, 'x')}, {"special", true}});
  const auto tokenizer = MakeTokenizer(json);
  std::vector<int32_t> ids(kMaxDecodeBytes / kTokenBytes, 301);
  EXPECT_EQ(Text(*tokenizer, ids, true).size(), kMaxDecodeBytes);
  ids.push_back('a');
  const absl::Status status = tokenizer->Decode(ids, true).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "the text of 2049 token ids has 16777217 bytes, more than 16777216");
  EXPECT_EQ(Text(*tokenizer, ids, false), "a");
}

TEST(Tokenizer, TextThatNormalizersBlowUpIsRefused) {
  nlohmann::json json = SmallSentencePiece();
  const nlohmann::json replace = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(16, 'a')}};
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {replace, replace, replace, replace, replace}}};
  const auto tokenizer = MakeTokenizer(json);
  EXPECT_EQ(tokenizer->Encode(std::string(1000, 'a'), {}).status().message(),
            "the text grows beyond 268435456 bytes when normalized");
}

TEST(Tokenizer, LooksUpTokens) {
  const auto tokenizer = MakeTokenizer(SmallByteLevel());
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_EQ(tokenizer->TokenBytes(258), " ab");
  EXPECT_EQ(tokenizer->TokenBytes(0xC3), "\xC3");
  EXPECT_EQ(tokenizer->TokenBytes(300), "<|end|>");
  EXPECT_EQ(tokenizer->TokenId("Ġab"), 258);
  EXPECT_EQ(tokenizer->TokenId("<|end|>"), 300);
  EXPECT_EQ(tokenizer->TokenId("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer->bos_token_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(300));
}

TEST(Tokenizer, MissingFileIsNotFound) {
  EXPECT_EQ(Tokenizer::Load("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

// The small one, whose post-processor adds nothing unless asked for, with a tokenizer_config.json.
absl::StatusOr<std::unique_ptr<Tokenizer>> WithConfig(const std::string& config,
                                                      bool has_template = false) {
  Json json = SmallSentencePiece();
  if (!has_template) json["post_processor"] = {{"type", "ByteLevel"}};
  return Tokenizer::Parse(json.dump(), config);
}

TEST(TokenizerConfig, AddsBosWherePostProcessorsDoNot) {
  for (const char* config :
       {R"({"add_bos_token":true,"bos_token":"<s>"})",
        R"({"add_bos_token":true,"bos_token":"<s>","tokenizer_class":"LlamaTokenizerFast"})",
        R"({"add_bos_token":true,"bos_token":{"__type":"AddedToken","content":"<s>"}})"}) {
    for (const bool has_template : {false, true}) {
      const auto tokenizer = WithConfig(config, has_template);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      EXPECT_THAT(Ids(**tokenizer, "ab", {}), ElementsAre(1, 9));
      EXPECT_THAT(Ids(**tokenizer, "ab", kBare), ElementsAre(9));
      EXPECT_EQ((*tokenizer)->bos_token_id(), 1);
    }
  }
}

TEST(TokenizerConfig, AddsNothingUnlessItSaysSo) {
  for (
      const char* config :
      {"{}", R"({"bos_token":"<s>"})", R"({"add_bos_token":null,"bos_token":"<s>"})",
       R"({"add_bos_token":false,"bos_token":"no such token"})",
       R"({"add_bos_token":true,"bos_token":"<s>","tokenizer_class":"PreTrainedTokenizerFast"})"}) {
    const auto tokenizer = WithConfig(config);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_THAT(Ids(**tokenizer, "ab", {}), ElementsAre(9)) << config;
    EXPECT_THAT(Ids(**WithConfig(config, /*has_template=*/true), "ab", {}), ElementsAre(1, 9));
  }
}

TEST(TokenizerConfig, ErrorsNameWhatIsWrong) {
  const auto error = [](const char* config) {
    return std::string(WithConfig(config).status().message());
  };
  EXPECT_THAT(error(R"({"add_bos_token":true,"bos_token":"<bos>"})"),
              HasSubstr("tokenizer_config.json: bos_token '<bos>' is not in the vocabulary"));
  EXPECT_TRUE(WithConfig(R"({"add_bos_token":true,"bos_token":"<bos>"})", true).ok());
  EXPECT_THAT(error(R"({"add_bos_token":true})"),
              HasSubstr("tokenizer_config.json: bos_token is null, not a token"));
  EXPECT_THAT(error(R"({"add_bos_token":1,"bos_token":"<s>"})"),
              HasSubstr("add_bos_token is 1, not true or false"));
  EXPECT_THAT(error(R"({"add_bos_token":false,"add_bos_token":true})"), HasSubstr("occurs twice"));
  EXPECT_THAT(error(R"({"tokenizer_class":[]})"), HasSubstr("tokenizer_class is [], not a name"));
  EXPECT_THAT(error("{"), HasSubstr("tokenizer_config.json: not valid JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("tokenizer_config.json: not a JSON object"));
}

TEST(TokenizerConfig, IsReadFromTheDirectory) {
  Json json = SmallSentencePiece();
  json["post_processor"] = nullptr;
  const TempDirectory directory;
  directory.Write("tokenizer.json", json.dump());
  EXPECT_THAT(Ids(*LoadOrDie(directory.path()), "ab", {}), ElementsAre(9));
  directory.Write("tokenizer_config.json", R"({"add_bos_token":true,"bos_token":"<s>"})");
  EXPECT_THAT(Ids(*LoadOrDie(directory.path()), "ab", {}), ElementsAre(1, 9));
  directory.Write("tokenizer_config.json", std::string(kMaxTokenizerConfigBytes + 1, ' '));
  EXPECT_THAT(std::string(Tokenizer::Load(directory.path()).status().message()),
              HasSubstr("67108865 bytes, the limit is 67108864"));
}

}  // namespace
}  // namespace lockstep::testing
