#include "model/tokenizer/token_decoder.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 28;
constexpr size_t kMaxDecodedBytes = size_t{1} << 20;

// The byte that "<0xE2>" stands for.
std::optional<char> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return std::nullopt;
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
    const int digit_value = absl::ascii_isdigit(static_cast<unsigned char>(digit))
                                ? digit - '0'
                                : absl::ascii_tolower(static_cast<unsigned char>(digit)) - 'a' + 10;
    value = 16 * value + digit_value;
  }
  return static_cast<char>(value);
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Make(DecoderSpec spec, const Vocabulary& vocabulary) {
  TokenDecoder decoder(std::move(spec), vocabulary);
  decoder.offsets_.reserve(vocabulary.size() + 1);
  decoder.offsets_.push_back(0);
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string bytes =
        vocabulary.IsValid(id) ? decoder.BytesOf(vocabulary.Content(id)) : std::string();
    if (bytes.size() > kMaxDecodedBytes) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: decoder: token ", id,
                                                     " decodes to more than ", kMaxDecodedBytes,
                                                     " bytes"));
    }
    decoder.bytes_ += bytes;
    if (decoder.bytes_.size() > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokenizer.json: decoder: the vocabulary decodes to more than ", kMaxBytes, " bytes"));
    }
    decoder.offsets_.push_back(decoder.bytes_.size());
  }
  return decoder;
}

std::string TokenDecoder::BytesOf(const std::string& content) const {
  // A token with a character outside of the byte alphabet (an added one) stands for itself.
  if (spec_.byte_level) return BytesOfByteLevel(content).value_or(content);
  if (!spec_.metaspace.empty()) return ReplaceAll(content, spec_.metaspace, " ");
  std::string text = content;
  for (const auto& [pattern, replacement] : spec_.replacements) {
    text = ReplaceAll(text, pattern, replacement);
    if (text.size() > kMaxDecodedBytes) return text;  // which is too long already
  }
  if (spec_.byte_fallback) {
    if (const auto byte = ByteOfToken(text); byte.has_value()) return std::string(1, *byte);
  }
  return text;
}

std::string TokenDecoder::FirstBytes(int32_t id) const {
  if (!spec_.metaspace_drops_first) return std::string(Bytes(id));
  return ReplaceAll(vocabulary_->Content(id), spec_.metaspace, "");
}

void TokenDecoder::StripStart(std::string& text, size_t& budget) const {
  std::string_view rest = text;
  while (budget > 0 && rest.starts_with(spec_.strip_content)) {
    rest.remove_prefix(spec_.strip_content.size());
    --budget;
  }
  if (!rest.empty()) budget = 0;
  text.erase(0, text.size() - rest.size());
}

}  // namespace lockstep
