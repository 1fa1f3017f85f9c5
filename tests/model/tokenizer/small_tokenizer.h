// A tokenizer.json small enough to work out by hand, for tests to change one thing in.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace lockstep::testing {

// Ids 0..2 are special, <0x00>..<0xFF> are 100..355, the rest as listed; no pre-tokenizer.
inline nlohmann::json SmallSentencePiece() {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}, {"▁", 3},
                          {"a", 4},     {"b", 5},   {"c", 6},    {"ab", 7},
                          {"▁a", 8},    {"▁ab", 9}, {"bc", 10},  {"abc", 11},
                          {"<", 12},    {">", 13},  {"s", 14},   {"é", 15}};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    vocab[name] = 100 + byte;
  }
  const auto special = [](int id, const char* content) {
    return nlohmann::json{{"id", id}, {"content", content}, {"special", true}};
  };
  const auto merge = [](const char* left, const char* right) {
    return nlohmann::json::array({left, right});
  };
  return {{"version", "1.0"},
          {"added_tokens",
           nlohmann::json::array({special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")})},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", nlohmann::json::array({merge("a", "b"), merge("▁", "ab"), merge("▁", "a"),
                                              merge("b", "c"), merge("ab", "c")})}}}};
}

// Ids 0..255 are the bytes by value, 256 " a", 257 "ab", 258 " ab", 300 the special <|end|>. Pieces
// are runs of letters with at most one space in front, and runs of anything else.
inline nlohmann::json SmallByteLevel() {
  nlohmann::json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string name;
    AppendByteLevel(std::string(1, static_cast<char>(byte)), name);
    vocab[name] = byte;
  }
  vocab.update({{"Ġa", 256}, {"ab", 257}, {"Ġab", 258}});
  return {{"added_tokens", {{{"id", 300}, {"content", "<|end|>"}, {"special", true}}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", R"( ?\p{L}+)"}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "Ġ a", "Ġ ab"}}}}};
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(const nlohmann::json& json) {
  auto tokenizer = Tokenizer::Parse(json.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                                EncodeOptions options = {.add_special_tokens = false}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : std::vector<int32_t>{};
}

inline std::string Text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                        bool include_special_tokens = false) {
  auto text = tokenizer.Decode(ids, include_special_tokens);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *std::move(text) : std::string{};
}

}  // namespace lockstep::testing
