#include "model/tokenizer/tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/markup_ranges.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/token_decoder.h"
#include "model/tokenizer/tokenizer_config.h"
#include "model/tokenizer/tokenizer_file.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/utf8.h"
#include "model/tokenizer/vocabulary.h"

namespace lockstep {

struct Tokenizer::Impl {
  std::unique_ptr<const Vocabulary> vocabulary;  // on the heap: bpe and decoder point to it
  AddedTokenMatcher raw_tokens;                  // searched in the text as given
  std::vector<NormalizerStep> normalizer;
  AddedTokenMatcher normalized_tokens;  // searched in the normalized text
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  TokenDecoder decoder;
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;

  absl::Status EncodeText(std::string_view text, const MarkupRanges& markup,
                          std::vector<int32_t>& ids) const;
  absl::Status EncodeNormalized(std::string_view text, bool at_start, bool is_markup,
                                Bpe::Scratch& scratch, std::vector<int32_t>& ids) const;
  absl::Status CheckDecodes(std::span<const int32_t> ids, bool include_special_tokens) const;
};

namespace {

absl::StatusOr<AddedTokenMatcher> MakeMatcher(const TokenizerSpec& spec, bool normalized) {
  std::vector<AddedTokenMatcher::Token> tokens;
  for (const AddedTokenSpec& token : spec.added_tokens) {
    if (token.normalized != normalized) continue;
    std::string content = token.content;
    if (normalized) {
      ASSIGN_OR_RETURN(content, Normalize(content, spec.normalizer));
      if (content.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tokenizer.json: added_tokens: ", Quote(token.content), " is empty when normalized"));
      }
    }
    tokens.push_back({token.id, std::move(content), token.special, token.lstrip, token.rstrip});
  }
  return AddedTokenMatcher(std::move(tokens));
}

absl::Status CheckTemplate(const std::vector<int32_t>& ids, const Vocabulary& vocabulary) {
  for (const int32_t id : ids) {
    if (!vocabulary.IsValid(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.json: post_processor: id ", id, " is not in the vocabulary"));
    }
  }
  return absl::OkStatus();
}

absl::Status AddBos(std::string_view tokenizer_config_json, const Vocabulary& vocabulary,
                    std::vector<int32_t>& prefix_ids) {
  ASSIGN_OR_RETURN(const std::optional<std::string> bos, ParseAddedBos(tokenizer_config_json));
  if (!bos.has_value() || !prefix_ids.empty()) return absl::OkStatus();
  const std::optional<int32_t> id = vocabulary.AnyId(*bos);
  if (!id.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: bos_token ", Quote(*bos),
                                                   " is not in the vocabulary"));
  }
  prefix_ids = {*id};
  return absl::OkStatus();
}

// "{}" without one.
absl::StatusOr<std::string> ReadTokenizerConfig(const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxTokenizerConfigBytes);
  if (absl::IsNotFound(text.status()) || absl::IsUnavailable(text.status())) return "{}";
  return text;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::filesystem::path& directory) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadTextFile(directory / "tokenizer.json", kMaxTokenizerFileBytes));
  ASSIGN_OR_RETURN(const std::string config,
                   ReadTokenizerConfig(directory / "tokenizer_config.json"));
  auto tokenizer = Parse(text, config);
  if (tokenizer.ok()) return tokenizer;
  return InFile(directory, tokenizer.status());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(
    std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  ASSIGN_OR_RETURN(TokenizerFile file, ReadTokenizerFile(tokenizer_json));
  ASSIGN_OR_RETURN(TokenizerSpec spec, MakeTokenizerSpec(std::move(file)));
  ASSIGN_OR_RETURN(AddedTokenMatcher raw_tokens, MakeMatcher(spec, false));
  ASSIGN_OR_RETURN(AddedTokenMatcher normalized_tokens, MakeMatcher(spec, true));
  ASSIGN_OR_RETURN(Vocabulary made, Vocabulary::Make(spec));
  auto vocabulary = std::make_unique<const Vocabulary>(std::move(made));
  RETURN_IF_ERROR(CheckTemplate(spec.prefix_ids, *vocabulary));
  RETURN_IF_ERROR(CheckTemplate(spec.suffix_ids, *vocabulary));
  RETURN_IF_ERROR(AddBos(tokenizer_config_json, *vocabulary, spec.prefix_ids));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Make(std::move(spec.pre_tokenizer)));
  ASSIGN_OR_RETURN(Bpe bpe, Bpe::Make(spec.model, *vocabulary));
  ASSIGN_OR_RETURN(TokenDecoder decoder, TokenDecoder::Make(std::move(spec.decoder), *vocabulary));
  auto impl = std::make_unique<Impl>(
      Impl{std::move(vocabulary), std::move(raw_tokens), std::move(spec.normalizer),
           std::move(normalized_tokens), std::move(pre_tokenizer), std::move(bpe),
           std::move(decoder), std::move(spec.prefix_ids), std::move(spec.suffix_ids)});
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

namespace {

absl::Status CheckEncodes(std::string_view text) {
  if (text.size() > kMaxEncodeBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes, more than ", kMaxEncodeBytes));
  }
  if (const size_t invalid = FindInvalidUtf8(text); invalid != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not valid UTF-8 at byte ", invalid));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  RETURN_IF_ERROR(CheckEncodes(text));
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = impl_->prefix_ids;
  const MarkupRanges markup =
      options.parse_special_tokens ? MarkupRanges::All() : MarkupRanges::None();
  RETURN_IF_ERROR(impl_->EncodeText(text, markup, ids));
  if (options.add_special_tokens) {
    ids.insert(ids.end(), impl_->suffix_ids.begin(), impl_->suffix_ids.end());
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePieces(
    std::span<const TextPiece> pieces) const {
  std::string text;
  MarkupRanges markup;
  for (const TextPiece& piece : pieces) {
    const size_t begin = text.size();
    text += piece.text;
    if (piece.is_markup && !piece.text.empty()) markup.Add(begin, text.size());
  }
  RETURN_IF_ERROR(CheckEncodes(text));
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(impl_->EncodeText(text, markup, ids));
  return ids;
}

absl::Status Tokenizer::Impl::EncodeText(std::string_view text, const MarkupRanges& markup,
                                         std::vector<int32_t>& ids) const {
  Bpe::Scratch scratch;
  const auto on_text = [&](std::string_view part) -> absl::Status {
    const auto begin = static_cast<size_t>(part.data() - text.data());
    const bool is_markup = markup.Covers(begin, begin + part.size());
    if (normalizer.empty()) return EncodeNormalized(part, begin == 0, is_markup, scratch, ids);
    ASSIGN_OR_RETURN(const std::string normalized, Normalize(part, normalizer));
    return EncodeNormalized(normalized, begin == 0, is_markup, scratch, ids);
  };
  return raw_tokens.Split(text, markup, on_text, [&](int32_t id) { ids.push_back(id); });
}

absl::Status Tokenizer::Impl::EncodeNormalized(std::string_view text, bool at_start, bool is_markup,
                                               Bpe::Scratch& scratch,
                                               std::vector<int32_t>& ids) const {
  const auto on_text = [&](std::string_view part) {
    return pre_tokenizer.Split(
        part, at_start && part.data() == text.data(),
        [&](std::string_view piece) { return bpe.Encode(piece, scratch, ids); });
  };
  return normalized_tokens.Split(text, is_markup ? MarkupRanges::All() : MarkupRanges::None(),
                                 on_text, [&](int32_t id) { ids.push_back(id); });
}

absl::Status Tokenizer::Impl::CheckDecodes(std::span<const int32_t> ids,
                                           bool include_special_tokens) const {
  size_t num_bytes = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!vocabulary->IsValid(ids[i])) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", ids[i], " (number ", i,
                                                     ") is not in the vocabulary of ",
                                                     vocabulary->size()));
    }
    if (!include_special_tokens && vocabulary->IsSpecial(ids[i])) continue;
    num_bytes += decoder.Bytes(ids[i]).size();
  }
  if (num_bytes <= kMaxDecodeBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the text of ", ids.size(), " token ids has ",
                                                 num_bytes, " bytes, more than ", kMaxDecodeBytes));
}

absl::StatusOr<std::string> Tokenizer::Decode(std::span<const int32_t> ids,
                                              bool include_special_tokens) const {
  RETURN_IF_ERROR(impl_->CheckDecodes(ids, include_special_tokens));
  const TokenDecoder& decoder = impl_->decoder;
  std::string bytes;
  bool at_first_token = true;
  for (const int32_t id : ids) {
    if (!include_special_tokens && IsSpecial(id)) continue;
    if (std::exchange(at_first_token, false)) {
      bytes = decoder.FirstBytes(id);
    } else {
      bytes += decoder.Bytes(id);
    }
  }
  std::string text;
  if (AppendUtf8Lossy(bytes, text) < bytes.size()) text += kReplacementCharacter;
  size_t strip_budget = decoder.strip_start();
  decoder.StripStart(text, strip_budget);
  return text;
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  return IsValid(id) ? std::string(impl_->decoder.Bytes(id)) : std::string();
}
bool Tokenizer::IsSpecial(int32_t id) const { return impl_->vocabulary->IsSpecial(id); }
bool Tokenizer::IsValid(int32_t id) const { return impl_->vocabulary->IsValid(id); }
std::optional<int32_t> Tokenizer::TokenId(std::string_view content) const {
  return impl_->vocabulary->AnyId(content);
}
int32_t Tokenizer::vocab_size() const { return impl_->vocabulary->size(); }
std::optional<int32_t> Tokenizer::bos_token_id() const {
  if (impl_->prefix_ids.empty()) return std::nullopt;
  return impl_->prefix_ids.front();
}

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer,
                                               bool include_special_tokens, bool is_continuation)
    : tokenizer_(&tokenizer),
      include_special_tokens_(include_special_tokens),
      at_first_token_(!is_continuation),
      strip_budget_(is_continuation ? 0 : tokenizer.impl_->decoder.strip_start()) {}

std::string IncrementalDetokenizer::Add(int32_t id) {
  const TokenDecoder& decoder = tokenizer_->impl_->decoder;
  if (!tokenizer_->IsValid(id)) return "";
  if (!include_special_tokens_ && tokenizer_->IsSpecial(id)) return "";
  if (std::exchange(at_first_token_, false)) {
    pending_ += decoder.FirstBytes(id);
  } else {
    pending_ += decoder.Bytes(id);
  }
  std::string text;
  pending_.erase(0, AppendUtf8Lossy(pending_, text));
  decoder.StripStart(text, strip_budget_);
  return text;
}

std::string IncrementalDetokenizer::Finish() {
  if (std::exchange(pending_, {}).empty()) return "";
  return std::string(kReplacementCharacter);
}

}  // namespace lockstep
