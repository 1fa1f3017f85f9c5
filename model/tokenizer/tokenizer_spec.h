// What a tokenizer.json asks for, as plain data: checked, in our terms, nothing compiled yet.
// Every component type and option that Lockstep does not follow exactly is refused by name, since a
// tokenizer that is nearly right feeds the model subtly wrong ids. Field names and meanings are
// those of https://github.com/huggingface/tokenizers (0.23). Of the file's top level, "truncation"
// and "padding" are ignored: the server has limits of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer_file.h"

namespace lockstep {

struct NormalizerStep {
  enum class Kind { kPrepend, kReplace, kNfc };
  Kind kind;
  std::string pattern = {};  // kReplace: the literal text to replace, not empty
  std::string content = {};  // what is prepended, or put in the pattern's place
};

struct PreTokenizerStep {
  enum class Kind { kSplit, kByteLevel, kMetaspace };
  enum class PrependScheme { kAlways, kFirst, kNever };
  Kind kind;
  std::string regex = {};         // kSplit, and kByteLevel unless empty: pieces are its matches
  bool add_prefix_space = false;  // kByteLevel
  std::string replacement = {};   // kMetaspace: one character that stands for a space
  PrependScheme prepend_scheme = PrependScheme::kNever;  // kMetaspace
  bool split = false;  // kMetaspace: a piece begins at every replacement
};

struct DecoderSpec {
  bool byte_level = false;     // tokens are spelled in GPT-2's byte characters
  bool byte_fallback = false;  // tokens <0x00> to <0xFF> are bytes
  std::vector<std::pair<std::string, std::string>> replacements;  // in each token, in this order
  std::string strip_content;  // one character; up to strip_start of it leave the text's start
  size_t strip_start = 0;
  std::string metaspace;               // becomes a space
  bool metaspace_drops_first = false;  // ... but vanishes in the first token
};

struct AddedTokenSpec {
  int32_t id;
  std::string content;
  bool special = false;
  bool normalized = false;  // matched in the normalized text, else in the text as given
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // ... and after it
};

struct BpeSpec {
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  std::vector<std::pair<std::string, int32_t>> vocab;
  std::vector<std::pair<std::string, std::string>> merges;
};

struct TokenizerSpec {
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  BpeSpec model;
  DecoderSpec decoder;
  std::vector<AddedTokenSpec> added_tokens;
  std::vector<int32_t> prefix_ids;  // what the post-processor puts before the text, e.g. BOS
  std::vector<int32_t> suffix_ids;  // ... and after it
};

// INVALID_ARGUMENT naming the part that is malformed or unsupported.
absl::StatusOr<TokenizerSpec> MakeTokenizerSpec(TokenizerFile file);

}  // namespace lockstep
