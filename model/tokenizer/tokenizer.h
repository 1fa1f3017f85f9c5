// Text <-> token ids from a Hugging Face tokenizer.json: byte-level BPE (Llama 3) and
// SentencePiece-style BPE with byte fallback (Llama 2). Encoding: added tokens are cut out, the
// rest is normalized, pre-tokenized and merged; see added_tokens.h, pre_tokenizer.h, bpe.h.
//
// Immutable after Load, safe to use from many threads. Encoding a text of n bytes takes O(n log n).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/text_piece.h"

namespace lockstep {

inline constexpr size_t kMaxEncodeBytes = size_t{1} << 26;  // 64 MiB of text
inline constexpr size_t kMaxDecodeBytes = size_t{1} << 24;  // 16 MiB, as the tokens have them

struct EncodeOptions {
  bool add_special_tokens = true;     // BOS, as the model's files say
  bool parse_special_tokens = false;  // "<|eot_id|>" in the text becomes its id; else it is text
};

class Tokenizer {
 public:
  // Reads directory/tokenizer.json, and tokenizer_config.json unless it is missing or cannot be
  // read. Errors as ReadTextFile (kernels/base/text_file.h), and INVALID_ARGUMENT naming the part
  // that is malformed or unsupported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& directory);
  // BOS is what the former's post-processor puts in front, if nothing what the latter says.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(
      std::string_view tokenizer_json, std::string_view tokenizer_config_json = "{}");
  ~Tokenizer();

  // INVALID_ARGUMENT for invalid UTF-8 (with the byte offset), more than kMaxEncodeBytes, or a
  // character that the vocabulary cannot express.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const;
  // The pieces as one text, in which special tokens are those that markup holds. Adds none. Tokens
  // that are found in normalized text count where all between two others is markup.
  absl::StatusOr<std::vector<int32_t>> EncodePieces(std::span<const TextPiece> pieces) const;
  // Always valid UTF-8: each maximal invalid or incomplete part of a character becomes one U+FFFD.
  // INVALID_ARGUMENT for an unknown id, or tokens of more than kMaxDecodeBytes.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                     bool include_special_tokens) const;

  // The raw bytes a token stands for (may be part of a character; " the" with its space); empty for
  // unknown ids.
  std::string TokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  bool IsValid(int32_t id) const;
  std::optional<int32_t> TokenId(std::string_view content) const;  // in the vocabulary or added
  int32_t vocab_size() const;                                      // largest id + 1
  std::optional<int32_t> bos_token_id() const;  // the first that add_special_tokens puts in front

 private:
  friend class IncrementalDetokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Decodes one output token by token. The concatenation of every Add and of Finish is exactly
// Decode(all ids), or, for a continuation, what these ids add to the text before them. Bytes of an
// incomplete character are held back. Used by one thread at a time.
class IncrementalDetokenizer {
 public:
  // tokenizer must outlive it. is_continuation: the output follows a prompt's text, so
  // SentencePiece's leading space is kept.
  IncrementalDetokenizer(const Tokenizer& tokenizer, bool include_special_tokens,
                         bool is_continuation);
  std::string Add(int32_t id);  // an unknown id adds nothing
  std::string Finish();         // what is held back, incomplete bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool include_special_tokens_;
  bool at_first_token_;
  size_t strip_budget_;  // how many leading spaces may yet be dropped
  std::string pending_;  // at most 3 bytes that may become a character
};

}  // namespace lockstep
