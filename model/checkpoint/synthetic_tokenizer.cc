#include "model/checkpoint/synthetic_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

using nlohmann::json;

// The pre-tokenizer's pattern of Llama 3 (tokenizer.json of meta-llama/Meta-Llama-3-8B).
constexpr const char* kSplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Common English words, most frequent first.
constexpr const char* kWords =
    "the of and to in is that it he was for on are as with his they at be this have from or one "
    "had "
    "by word but not what all were we when your can said there use an each which she do how their "
    "if "
    "will up other about out many then them these so some her would make like him into time has "
    "look "
    "two more write go see number no way could people my than first water been call who its now "
    "find "
    "long down day did get come made may part over new sound take only little work know place year "
    "live me back give most very after thing our just name good sentence man think say great where "
    "help through much before line right too mean old any same tell boy follow came want show also "
    "around form three small set put end does another well large must big even such because turn "
    "here why ask went men read need land different home us move try kind hand picture again "
    "change "
    "off play spell air away animal house point page letter mother answer found study still learn "
    "should once upon story little girl happy friend dog cat park love smile world computer "
    "language "
    "model token train server request stream layer parallel memory number question hello thank "
    "please";

// Names of Llama 3.1's special tokens by distance from bos; the rest are
// "<|reserved_special_token_N|>".
std::string Llama3SpecialName(int64_t index) {
  static constexpr std::array<const char*, 11> kNames = {"<|begin_of_text|>",
                                                         "<|end_of_text|>",
                                                         "<|reserved_special_token_0|>",
                                                         "<|reserved_special_token_1|>",
                                                         "<|finetune_right_pad_id|>",
                                                         "<|reserved_special_token_2|>",
                                                         "<|start_header_id|>",
                                                         "<|end_header_id|>",
                                                         "<|eom_id|>",
                                                         "<|eot_id|>",
                                                         "<|python_tag|>"};
  if (index < static_cast<int64_t>(kNames.size())) return kNames[index];
  return absl::StrCat("<|reserved_special_token_", index - 8, "|>");
}

std::map<int32_t, std::string> NamedTokens(const ModelConfig& config) {
  std::map<int32_t, std::string> special;
  if (config.bos_token_id.has_value()) {
    const int64_t bos = *config.bos_token_id;
    const bool llama3_layout = bos >= config.vocab_size - config.vocab_size / 10;
    const int64_t end = llama3_layout ? config.vocab_size : bos + 1;
    for (int64_t id = bos; id < end; ++id) {
      special.emplace(static_cast<int32_t>(id), Llama3SpecialName(id - bos));
    }
  }
  bool has_end = std::any_of(special.begin(), special.end(),
                             [](const auto& token) { return token.second == "<|end_of_text|>"; });
  for (const int32_t id : config.eos_token_ids) {
    if (special.contains(id)) continue;
    special.emplace(id, has_end ? absl::StrCat("<|end_", id, "|>") : "<|end_of_text|>");
    has_end = true;
  }
  return special;
}

std::string Utf8(int code_point) {  // below 0x800
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3f))};
}

// The printable stand-ins of the 256 bytes, in GPT-2's order of ids. Source: bytes_to_unicode in
// openai/gpt-2's encoder.py.
std::vector<std::string> ByteAlphabet() {
  const auto is_printable = [](int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  };
  std::vector<std::string> alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    if (is_printable(byte)) alphabet.push_back(Utf8(byte));
  }
  int stand_in = 256;
  for (int byte = 0; byte < 256; ++byte) {
    if (!is_printable(byte)) alphabet.push_back(Utf8(stand_in++));
  }
  return alphabet;
}

// Fills the ids that are not special, ascending.
class VocabularyBuilder {
 public:
  VocabularyBuilder(int64_t vocab_size, const std::map<int32_t, std::string>& special)
      : vocab_size_(vocab_size), special_(special) {
    SkipSpecial();
  }

  bool full() const { return next_id_ >= vocab_size_; }
  bool contains(const std::string& token) const { return tokens_.contains(token); }

  void Add(const std::string& token) {
    if (full() || !tokens_.insert(token).second) return;
    vocab_[token] = next_id_++;
    SkipSpecial();
  }

  // Merges letter by letter: every prefix of the word becomes a token.
  void AddWord(const std::string& first, std::string_view rest) {
    std::string prefix = first;
    for (const char letter : rest) {
      const std::string longer = prefix + letter;
      if (full()) return;
      if (!contains(longer)) merges_.push_back(absl::StrCat(prefix, " ", std::string(1, letter)));
      Add(longer);
      prefix = longer;
    }
  }

  json TakeVocab() { return std::move(vocab_); }
  json TakeMerges() { return std::move(merges_); }

 private:
  void SkipSpecial() {
    while (special_.contains(static_cast<int32_t>(next_id_))) ++next_id_;
  }

  const int64_t vocab_size_;
  const std::map<int32_t, std::string>& special_;
  int64_t next_id_ = 0;
  absl::flat_hash_set<std::string> tokens_;
  json vocab_ = json::object();
  json merges_ = json::array();
};

// Distinct for distinct indices: digits to base 100, each a consonant and a vowel.
std::string FillerWord(int64_t index) {
  static constexpr std::string_view kConsonants = "bcdfghjklmnpqrstvwxz";
  static constexpr std::string_view kVowels = "aeiou";
  std::string word;
  do {
    const int64_t syllable = index % 100;
    word += kConsonants[syllable / 5];
    word += kVowels[syllable % 5];
    index /= 100;
  } while (index > 0);
  return word;
}

void FillVocabulary(VocabularyBuilder& builder) {
  static const std::string kSpace = Utf8(0x120);  // byte 32's stand-in
  for (const std::string& byte : ByteAlphabet()) builder.Add(byte);
  const std::vector<std::string> words = absl::StrSplit(kWords, ' ');
  // With the leading space first, so that a word after a space is merged from its start.
  for (const std::string& word : words) builder.AddWord(kSpace, word);
  for (const std::string& word : words) builder.AddWord(word.substr(0, 1), word.substr(1));
  for (int64_t index = 0; !builder.full(); ++index) {
    // Two syllables at least, so that fillers look like words and leave the short prefixes alone.
    builder.Add(absl::StrCat(kSpace, FillerWord(index + 100)));
  }
}

json AddedTokens(const std::map<int32_t, std::string>& special) {
  json added = json::array();
  for (const auto& [id, content] : special) {
    added.push_back({{"id", id},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return added;
}

json ByteLevel(bool add_prefix_space, bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

json PostProcessor(const ModelConfig& config, const std::map<int32_t, std::string>& special) {
  if (!config.bos_token_id.has_value()) return ByteLevel(true, false, true);
  const int32_t id = *config.bos_token_id;
  const std::string& bos = special.at(id);
  const json begin = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json second_begin = {{"SpecialToken", {{"id", bos}, {"type_id", 1}}}};
  const json second_text = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const json ids = json::array({id});
  const json tokens = json::array({bos});
  json bos_template = {
      {"type", "TemplateProcessing"},
      {"single", json::array({begin, text})},
      {"pair", json::array({begin, text, second_begin, second_text})},
      {"special_tokens", {{bos, {{"id", bos}, {"ids", ids}, {"tokens", tokens}}}}}};
  return {{"type", "Sequence"},
          {"processors", json::array({ByteLevel(true, false, true), std::move(bos_template)})}};
}

json TokenizerDocument(const ModelConfig& config, const std::map<int32_t, std::string>& special,
                       VocabularyBuilder& builder) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", kSplitPattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  json model = {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", true}};
  model["vocab"] = builder.TakeVocab();
  model["merges"] = builder.TakeMerges();
  json document = {{"version", "1.0"},
                   {"truncation", nullptr},
                   {"padding", nullptr},
                   {"added_tokens", AddedTokens(special)},
                   {"normalizer", nullptr},
                   {"pre_tokenizer",
                    {{"type", "Sequence"},
                     {"pretokenizers", json::array({split, ByteLevel(false, true, false)})}}},
                   {"post_processor", PostProcessor(config, special)},
                   {"decoder", ByteLevel(true, true, true)}};
  document["model"] = std::move(model);
  return document;
}

json TokenizerConfig(const ModelConfig& config, const std::map<int32_t, std::string>& special) {
  json document = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"model_max_length", config.max_position_embeddings},
                   {"clean_up_tokenization_spaces", false}};
  if (config.bos_token_id.has_value()) document["bos_token"] = special.at(*config.bos_token_id);
  if (!config.eos_token_ids.empty())
    document["eos_token"] = special.at(config.eos_token_ids.front());
  return document;
}

}  // namespace

absl::StatusOr<SyntheticTokenizer> MakeSyntheticTokenizer(const ModelConfig& config) {
  const std::map<int32_t, std::string> special = NamedTokens(config);
  const int64_t num_ordinary = config.vocab_size - static_cast<int64_t>(special.size());
  if (num_ordinary < 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size = ", config.vocab_size, " leaves ", num_ordinary,
                     " ids beside the special tokens; a byte-level tokenizer needs 256"));
  }
  VocabularyBuilder builder(config.vocab_size, special);
  FillVocabulary(builder);
  SyntheticTokenizer out;
  out.tokenizer_json = TokenizerDocument(config, special, builder).dump() + "\n";
  out.tokenizer_config_json = TokenizerConfig(config, special).dump(1) + "\n";
  return out;
}

}  // namespace lockstep
