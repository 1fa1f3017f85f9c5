// Rubbish in: every malformed or unsupported tokenizer.json is an error that names the part.
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "model/tokenizer/tokenizer_file.h"
#include "tests/model/tokenizer/small_tokenizer.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

void ExpectRefused(const std::string& json, const std::string& naming) {
  const auto tokenizer = Tokenizer::Parse(json);
  ASSERT_FALSE(tokenizer.ok()) << json;
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(tokenizer.status().message());
  EXPECT_THAT(message, HasSubstr(naming));
  EXPECT_LT(message.size(), 600u);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Malformed, WhatIsNoTokenizerFile) {
  ExpectRefused("", "not valid JSON");
  ExpectRefused("{", "not valid JSON");
  ExpectRefused("{}x", "not valid JSON");
  ExpectRefused("\xFF", "not valid JSON");
  ExpectRefused("[]", "no JSON object");
  ExpectRefused("7", "no JSON object");
  ExpectRefused("{}", "model is missing");
  ExpectRefused(R"({"model": 3})", "model is a number");
  ExpectRefused(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})", "decoder");
  ExpectRefused(R"({"a": 1, "a": 2})", "repeats the name 'a'");
  ExpectRefused(std::string(1000, '['), "deeper");
  ExpectRefused(std::string(100, ' ') + std::string(40, '[') + std::string(40, ']'), "deeper");
  ExpectRefused(R"({"model": {"vocab": {}, "vocab": {}}})", "repeats the name 'vocab'");
  ExpectRefused(R"({"model": {"merges": [], "merges": []}})", "repeats the name 'merges'");
  ExpectRefused(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}, "decoder":)"
                R"({"type": "ByteLevel"}})",
                "'a' occurs twice");
}

struct Case {
  const char* naming;  // what the error must mention
  std::function<void(Json&)> change;
};

// Each change breaks or goes beyond one thing of the small SentencePiece tokenizer.
TEST(Malformed, ModelIsRefusedByName) {
  const Case cases[] = {
      {"'\"Unigram\"'", [](Json& j) { j["model"]["type"] = "Unigram"; }},
      {"vocab", [](Json& j) { j["model"].erase("vocab"); }},
      {"vocab", [](Json& j) { j["model"]["vocab"] = Json::array(); }},
      {"merges", [](Json& j) { j["model"].erase("merges"); }},
      {"merges", [](Json& j) { j["model"]["merges"] = 3; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = -1; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = "1"; }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = Json::array(); }},
      {"'a'", [](Json& j) { j["model"]["vocab"]["a"] = Json::object(); }},
      {"4194304", [](Json& j) { j["model"]["vocab"]["a"] = kMaxTokenId + 1; }},
      {"18446744073709551615", [](Json& j) { j["model"]["vocab"]["a"] = UINT64_MAX; }},
      {"the id 5", [](Json& j) { j["model"]["vocab"]["a"] = 5; }},
      {"8193 bytes", [](Json& j) { j["model"]["vocab"][std::string(8193, 'x')] = 900; }},
      {"merge 1", [](Json& j) { j["model"]["merges"][1] = "ab"; }},
      {"merge 1", [](Json& j) { j["model"]["merges"][1] = "a b c"; }},
      {"merge 1", [](Json& j) { j["model"]["merges"][1] = {"a"}; }},
      {"merge 1",
       [](Json& j) {
         j["model"]["merges"][1] = {"a", "b", "c"};
       }},
      {"merge 1",
       [](Json& j) {
         j["model"]["merges"][1] = {"a", 3};
       }},
      {"merge 1", [](Json& j) { j["model"]["merges"][1] = nullptr; }},
      {"merge 1", [](Json& j) { j["model"]["merges"][1] = Json::object(); }},
      {"merge 1",
       [](Json& j) {
         j["model"]["merges"][1] = {"c", "c"};
       }},
      {"dropout = '0.1'", [](Json& j) { j["model"]["dropout"] = 0.1; }},
      {"continuing_subword_prefix",
       [](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }},
      {"end_of_word_suffix", [](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"unk_token", [](Json& j) { j["model"]["unk_token"] = "nothing"; }},
      {"unk_token", [](Json& j) { j["model"]["unk_token"] = 0; }},
      {"byte_fallback", [](Json& j) { j["model"]["byte_fallback"] = "yes"; }},
  };
  for (const Case& one : cases) {
    Json json = SmallSentencePiece();
    one.change(json);
    ExpectRefused(json.dump(), one.naming);
  }
}

TEST(Malformed, TextStagesAreRefusedByName) {
  const auto split = [](const char* regex) {
    return Json{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}};
  };
  const Case cases[] = {
      {"65 steps, more than 64",
       [](Json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json(65, Json{{"type", "NFC"}})}};
       }},
      {"NFKC",
       [](Json& j) {
         j["normalizer"] = {{"type", "NFKC"}};
       }},
      {"normalizer", [](Json& j) { j["normalizer"] = 3; }},
      {"normalizers", [](Json& j) { j["normalizer"]["normalizers"] = 3; }},
      {"normalizer[1]", [](Json& j) { j["normalizer"]["normalizers"][1]["content"] = 3; }},
      {"normalizer[0]", [](Json& j) { j["normalizer"]["normalizers"][0]["type"] = "Sequence"; }},
      {"17 bytes",
       [](Json& j) { j["normalizer"]["normalizers"][0]["prepend"] = std::string(17, 'x'); }},
      {"Regex",
       [](Json& j) {
         j["normalizer"]["normalizers"][1]["pattern"] = {{"Regex", "a"}};
       }},
      {"empty",
       [](Json& j) {
         j["normalizer"]["normalizers"][1]["pattern"] = {{"String", ""}};
       }},
      {"Whitespace",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {"behavior", [&](Json& j) { (j["pre_tokenizer"] = split("a"))["behavior"] = "Removed"; }},
      {"invert", [&](Json& j) { (j["pre_tokenizer"] = split("a"))["invert"] = true; }},
      {"'\\\\w'", [&](Json& j) { j["pre_tokenizer"] = split("\\w+"); }},
      {"'[a'", [&](Json& j) { j["pre_tokenizer"] = split("[a"); }},
      {"Regex", [&](Json& j) { j["pre_tokenizer"] = split(""); }},
      {"replacement",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "ab"}};
       }},
      {"prepend_scheme",
       [](Json& j) {
         j["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "often"}};
       }},
      {"add_prefix_space",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", 1}};
       }},
  };
  for (const Case& one : cases) {
    Json json = SmallSentencePiece();
    one.change(json);
    ExpectRefused(json.dump(), one.naming);
  }
}

TEST(Malformed, OutputStagesAreRefusedByName) {
  const Case cases[] = {
      {"WordPiece",
       [](Json& j) {
         j["decoder"] = {{"type", "WordPiece"}};
       }},
      {"decoder", [](Json& j) { j["decoder"] = nullptr; }},
      {"decoder[3]: stop", [](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; }},
      {"decoder[3]: start", [](Json& j) { j["decoder"]["decoders"][3]["start"] = -1; }},
      {"decodes to more than 1048576",
       [](Json& j) {
         const Json replace = {{"type", "Replace"},
                               {"pattern", {{"String", "b"}}},
                               {"content", std::string(16, 'b')}};
         Json& decoders = j["decoder"]["decoders"];
         for (int i = 0; i < 12; ++i) decoders.insert(decoders.begin(), replace);
       }},
      {"Strip before Fuse", [](Json& j) { j["decoder"]["decoders"].erase(2); }},
      {"ByteLevel",
       [](Json& j) {
         j["decoder"]["decoders"].push_back({{"type", "ByteLevel"}});
       }},
      {"single one", [](Json& j) { j["decoder"]["decoders"][1]["type"] = "ByteLevel"; }},
      {"BertProcessing",
       [](Json& j) {
         j["post_processor"] = {{"type", "BertProcessing"}};
       }},
      {"single", [](Json& j) { j["post_processor"]["single"] = nullptr; }},
      {"lacks", [](Json& j) { j["post_processor"]["single"].erase(1); }},
      {"twice",
       [](Json& j) { j["post_processor"]["single"][0] = j["post_processor"]["single"][1]; }},
      {"'<s>'", [](Json& j) { j["post_processor"]["special_tokens"].clear(); }},
      {"ids", [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {-1}; }},
      {"id 99", [](Json& j) { j["post_processor"]["special_tokens"]["<s>"]["ids"] = {99}; }},
      {"more than 64",
       [](Json& j) {
         j["post_processor"]["special_tokens"]["<s>"]["ids"] = std::vector<int>(65, 1);
       }},
      {"added_tokens", [](Json& j) { j["added_tokens"] = 3; }},
      {"added_tokens[0]", [](Json& j) { j["added_tokens"][0] = 3; }},
      {"added_tokens[1]: id", [](Json& j) { j["added_tokens"][1]["id"] = -1; }},
      {"added_tokens[1]: id", [](Json& j) { j["added_tokens"][1]["id"] = kMaxTokenId + 1; }},
      {"added_tokens[1]: content", [](Json& j) { j["added_tokens"][1].erase("content"); }},
      {"added_tokens[1]: content", [](Json& j) { j["added_tokens"][1]["content"] = ""; }},
      {"single_word", [](Json& j) { j["added_tokens"][1]["single_word"] = true; }},
      {"vocab gives it the id 1", [](Json& j) { j["added_tokens"][1]["id"] = 40; }},
      {"belongs to '<s>'", [](Json& j) { j["added_tokens"][1]["content"] = "<new>"; }},
      {"occurs twice", [](Json& j) { j["added_tokens"][1] = j["added_tokens"][2]; }},
  };
  for (const Case& one : cases) {
    Json json = SmallSentencePiece();
    one.change(json);
    ExpectRefused(json.dump(), one.naming);
  }
}

// What a mutation leaves readable must also work without crashing.
void Exercise(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.Encode("abc <s> é ü\n12", {.parse_special_tokens = true});
  if (ids.ok()) {
    EXPECT_TRUE(tokenizer.Decode(*ids, true).ok());
  }
  IncrementalDetokenizer detokenizer(tokenizer, true, false);
  for (int32_t id = -1; id <= 400; ++id) detokenizer.Add(id);
  detokenizer.Finish();
}

std::string Mutate(std::string text, std::mt19937& random) {
  static constexpr std::string_view kBytes = "\"{}[]:,0919-ea\\ u\xE2\x96\x81\xFF";
  const int count = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < count; ++i) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0:
        text[at] = kBytes[random() % kBytes.size()];
        break;
      case 1:
        text.insert(at, 1, kBytes[random() % kBytes.size()]);
        break;
      case 2:
        text.erase(at, 1 + random() % 8);
        break;
      case 3:
        text.insert(at, text.substr(random() % text.size(), random() % 40));
        break;
      default:
        text.resize(1 + at);
        break;
    }
    if (text.empty()) text = "{";
  }
  return text;
}

TEST(Malformed, MutatedFilesNeverCrash) {
  std::mt19937 random(23);
  int num_accepted = 0;
  for (const Json& original : {SmallSentencePiece(), SmallByteLevel()}) {
    const std::string text = original.dump();
    for (int round = 0; round < 3000; ++round) {
      const auto tokenizer = Tokenizer::Parse(Mutate(text, random));
      if (!tokenizer.ok()) continue;
      ++num_accepted;
      Exercise(**tokenizer);
    }
  }
  EXPECT_GT(num_accepted, 10);  // else the mutations test only the JSON reader
}

// Values swapped for others of every type: past the JSON reader, into the meaning.
TEST(Malformed, SwappedValuesNeverCrash) {
  const Json values[] = {nullptr,
                         true,
                         -1,
                         1e300,
                         UINT64_MAX,
                         "",
                         "▁",
                         "<s>",
                         Json::array(),
                         Json::object(),
                         Json::array({1}),
                         {{"type", "Sequence"}}};
  std::mt19937 random(29);
  for (const Json& original : {SmallSentencePiece(), SmallByteLevel()}) {
    const Json flat = original.flatten();
    std::vector<std::string> paths;
    for (const auto& item : flat.items()) {
      for (Json::json_pointer path(item.key()); !path.empty(); path = path.parent_pointer()) {
        paths.push_back(path.to_string());
      }
    }
    for (int round = 0; round < 3000; ++round) {
      Json json = original;
      json[Json::json_pointer(paths[random() % paths.size()])] = values[random() % 12];
      const auto tokenizer = Tokenizer::Parse(json.dump());
      if (tokenizer.ok()) Exercise(**tokenizer);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
