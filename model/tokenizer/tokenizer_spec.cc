#include "model/tokenizer/tokenizer_spec.h"

#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/json_integer.h"
#include "model/tokenizer/json_fields.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// The pattern of HF's ByteLevel pre-tokenizer; source: GPT-2's encoder.py.
constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr size_t kMaxTemplateIds = 64;
constexpr size_t kMaxSteps = 64;  // of a Sequence; real ones have up to ten

// Calls `parse_one(fields, type)` for the component at `value`, or for each member of a Sequence
// (which may not hold further Sequences); nothing for null.
template <typename ParseOne>
absl::Status ForEachComponent(const Json& value, const std::string& where,
                              const std::string& sequence_member, ParseOne parse_one) {
  if (value.is_null()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const JsonFields outer, JsonFields::Of(value, where));
  ASSIGN_OR_RETURN(const std::string outer_type, outer.String("type"));
  if (outer_type != "Sequence") return parse_one(outer, outer_type);
  const Json& members = outer[sequence_member];
  if (!members.is_array()) return outer.Error(absl::StrCat(sequence_member, " is not an array"));
  if (members.size() > kMaxSteps) {  // each text goes through all of them
    return outer.Error(
        absl::StrCat(sequence_member, " has ", members.size(), " steps, more than ", kMaxSteps));
  }
  for (size_t i = 0; i < members.size(); ++i) {
    ASSIGN_OR_RETURN(const JsonFields inner,
                     JsonFields::Of(members[i], absl::StrCat(where, "[", i, "]")));
    ASSIGN_OR_RETURN(const std::string type, inner.String("type"));
    RETURN_IF_ERROR(parse_one(inner, type));
  }
  return absl::OkStatus();
}

absl::Status UnknownType(const JsonFields& fields) { return fields.Unsupported("type"); }

absl::StatusOr<std::string> OneCharacter(const JsonFields& fields, const std::string& name) {
  ASSIGN_OR_RETURN(std::string text, fields.String(name));
  if (text.empty() || NextUtf8Unit(text).num_bytes != text.size()) {
    return fields.Error(absl::StrCat(name, " is ", Quote(text), ", not one character"));
  }
  return text;
}

// A member that is put into text: kept short, so that no file can make text grow without bound.
absl::StatusOr<std::string> Insertion(const JsonFields& fields, const std::string& name) {
  constexpr size_t kLongest = 16;
  ASSIGN_OR_RETURN(std::string text, fields.String(name));
  if (text.size() <= kLongest) return text;
  return fields.Error(absl::StrCat(name, " has ", text.size(), " bytes, more than ", kLongest));
}

// {"String": s} -> s. Regular expressions in Replace are not supported.
absl::StatusOr<std::string> LiteralPattern(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const JsonFields pattern,
                   JsonFields::Of(fields["pattern"], fields.where() + ".pattern"));
  if (pattern.Has("Regex")) return pattern.Unsupported("Regex");
  ASSIGN_OR_RETURN(std::string text, pattern.String("String"));
  if (text.empty()) return pattern.Error("String is empty");
  return text;
}

absl::Status ParseNormalizerStep(const JsonFields& fields, const std::string& type,
                                 std::vector<NormalizerStep>& steps) {
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string content, Insertion(fields, "prepend"));
    steps.push_back({NormalizerStep::Kind::kPrepend, "", std::move(content)});
    return absl::OkStatus();
  }
  if (type == "NFC") {
    steps.push_back({NormalizerStep::Kind::kNfc});
    return absl::OkStatus();
  }
  if (type != "Replace") return UnknownType(fields);
  ASSIGN_OR_RETURN(std::string pattern, LiteralPattern(fields));
  ASSIGN_OR_RETURN(std::string content, Insertion(fields, "content"));
  steps.push_back({NormalizerStep::Kind::kReplace, std::move(pattern), std::move(content)});
  return absl::OkStatus();
}

absl::StatusOr<PreTokenizerStep> ParseByteLevel(const JsonFields& fields) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kByteLevel};
  ASSIGN_OR_RETURN(step.add_prefix_space, fields.Bool("add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, fields.Bool("use_regex", true));
  if (use_regex) step.regex = kGpt2Regex;
  return step;
}

absl::StatusOr<PreTokenizerStep> ParseSplit(const JsonFields& fields) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kSplit};
  ASSIGN_OR_RETURN(const std::string behavior, fields.String("behavior"));
  if (behavior != "Isolated") return fields.Unsupported("behavior");
  RETURN_IF_ERROR(fields.Refuse("invert", false));
  ASSIGN_OR_RETURN(const JsonFields pattern,
                   JsonFields::Of(fields["pattern"], fields.where() + ".pattern"));
  ASSIGN_OR_RETURN(step.regex, pattern.String("Regex"));
  if (step.regex.empty()) return pattern.Error("Regex is empty");
  return step;
}

absl::StatusOr<PreTokenizerStep> ParseDigits(const JsonFields& fields) {
  ASSIGN_OR_RETURN(const bool individual, fields.Bool("individual_digits", false));
  return PreTokenizerStep{.kind = PreTokenizerStep::Kind::kSplit,
                          .regex = individual ? R"(\p{N})" : R"(\p{N}+)"};
}

// Both the pre-tokenizer and the decoder of that name have a prepend_scheme; older files have
// add_prefix_space in its place.
absl::StatusOr<PreTokenizerStep::PrependScheme> ParsePrependScheme(const JsonFields& fields) {
  using Scheme = PreTokenizerStep::PrependScheme;
  ASSIGN_OR_RETURN(const bool add_prefix_space, fields.Bool("add_prefix_space", true));
  if (!fields.Has("prepend_scheme")) {
    return add_prefix_space ? Scheme::kAlways : Scheme::kNever;
  }
  ASSIGN_OR_RETURN(const std::string scheme, fields.String("prepend_scheme"));
  if (!add_prefix_space && scheme != "never") return fields.Unsupported("add_prefix_space");
  if (scheme == "always") return Scheme::kAlways;
  if (scheme == "first") return Scheme::kFirst;
  if (scheme == "never") return Scheme::kNever;
  return fields.Unsupported("prepend_scheme");
}

absl::StatusOr<PreTokenizerStep> ParseMetaspace(const JsonFields& fields) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::kMetaspace};
  ASSIGN_OR_RETURN(step.replacement, OneCharacter(fields, "replacement"));
  ASSIGN_OR_RETURN(step.prepend_scheme, ParsePrependScheme(fields));
  ASSIGN_OR_RETURN(step.split, fields.Bool("split", true));
  return step;
}

absl::Status ParsePreTokenizerStep(const JsonFields& fields, const std::string& type,
                                   std::vector<PreTokenizerStep>& steps) {
  const auto add = [&steps](absl::StatusOr<PreTokenizerStep> step) {
    if (step.ok()) steps.push_back(*std::move(step));
    return step.status();
  };
  if (type == "ByteLevel") return add(ParseByteLevel(fields));
  if (type == "Split") return add(ParseSplit(fields));
  if (type == "Digits") return add(ParseDigits(fields));
  if (type == "Metaspace") return add(ParseMetaspace(fields));
  return UnknownType(fields);
}

// A decoder is a chain over the list of tokens. We run it in one fixed order (replacements and
// bytes per token, joined, then the strip), so that it can also run token by token; chains that
// would mean something else are refused.
class DecoderParser {
 public:
  absl::Status Add(const JsonFields& fields, const std::string& type) {
    if (complete_) return fields.Error(absl::StrCat("no decoder may follow here, but ", type));
    if (type == "ByteLevel") return Whole(fields, [this] { spec_.byte_level = true; });
    if (type == "Metaspace") return AddMetaspace(fields);
    if (type == "Strip") return AddStrip(fields);
    if (type == "Fuse") return AddFuse();
    if (type != "ByteFallback" && type != "Replace") return UnknownType(fields);
    if (fused_) return fields.Error(absl::StrCat(type, " after Fuse is not supported"));
    any_ = true;
    if (type == "Replace") return AddReplace(fields);
    spec_.byte_fallback = true;
    return absl::OkStatus();
  }

  absl::StatusOr<DecoderSpec> Finish() {
    if (any_) return std::move(spec_);
    return absl::InvalidArgumentError("tokenizer.json: decoder: none is not supported");
  }

 private:
  // For decoders that must stand alone.
  template <typename Apply>
  absl::Status Whole(const JsonFields& fields, Apply apply) {
    if (any_) return fields.Error("this decoder is supported only as the single one");
    any_ = complete_ = true;
    apply();
    return absl::OkStatus();
  }

  absl::Status AddMetaspace(const JsonFields& fields) {
    ASSIGN_OR_RETURN(std::string replacement, OneCharacter(fields, "replacement"));
    ASSIGN_OR_RETURN(const auto scheme, ParsePrependScheme(fields));
    return Whole(fields, [&] {
      spec_.metaspace = std::move(replacement);
      spec_.metaspace_drops_first = scheme != PreTokenizerStep::PrependScheme::kNever;
    });
  }

  absl::Status AddReplace(const JsonFields& fields) {
    if (spec_.byte_fallback) return fields.Error("Replace after ByteFallback is not supported");
    ASSIGN_OR_RETURN(std::string pattern, LiteralPattern(fields));
    ASSIGN_OR_RETURN(std::string content, Insertion(fields, "content"));
    spec_.replacements.emplace_back(std::move(pattern), std::move(content));
    return absl::OkStatus();
  }

  absl::Status AddFuse() {
    any_ = fused_ = true;
    return absl::OkStatus();
  }

  absl::Status AddStrip(const JsonFields& fields) {
    if (!fused_) return fields.Error("Strip before Fuse is not supported");
    ASSIGN_OR_RETURN(spec_.strip_content, OneCharacter(fields, "content"));
    ASSIGN_OR_RETURN(spec_.strip_start, fields.Int("start", 0, 1 << 20));
    // What ends a text is known only when it has ended, long after it was streamed.
    RETURN_IF_ERROR(fields.Refuse("stop", 0));
    complete_ = true;
    return absl::OkStatus();
  }

  DecoderSpec spec_;
  bool any_ = false;
  bool fused_ = false;
  bool complete_ = false;  // nothing may follow
};

// The ids that {"SpecialToken": {"id": name}} stands for.
absl::StatusOr<std::vector<int32_t>> TemplateIds(const JsonFields& fields, const Json& reference) {
  ASSIGN_OR_RETURN(const JsonFields special, JsonFields::Of(reference, fields.where() + ".single"));
  ASSIGN_OR_RETURN(const std::string name, special.String("id"));
  ASSIGN_OR_RETURN(const JsonFields table,
                   JsonFields::Of(fields["special_tokens"], fields.where() + ".special_tokens"));
  ASSIGN_OR_RETURN(const JsonFields entry,
                   JsonFields::Of(table[name], table.where() + "." + Quote(name)));
  if (!entry["ids"].is_array()) return entry.Error("ids is not an array");
  std::vector<int32_t> ids;
  for (const Json& id : entry["ids"]) {
    const std::optional<int64_t> integer = IntegerIn(id, 0, kMaxTokenId);
    if (!integer)
      return entry.Error(absl::StrCat("ids holds what is no id from 0 to ", kMaxTokenId));
    ids.push_back(static_cast<int32_t>(*integer));
  }
  return ids;
}

absl::Status ParseTemplate(const JsonFields& fields, TokenizerSpec& spec) {
  const Json& single = fields["single"];
  if (!single.is_array()) return fields.Error("single is not an array");
  bool text_seen = false;
  for (const Json& item : single) {
    ASSIGN_OR_RETURN(const JsonFields piece, JsonFields::Of(item, fields.where() + ".single"));
    if (piece.Has("Sequence")) {
      if (text_seen) return piece.Error("Sequence occurs twice");
      text_seen = true;
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TemplateIds(fields, piece["SpecialToken"]));
    std::vector<int32_t>& side = text_seen ? spec.suffix_ids : spec.prefix_ids;
    side.insert(side.end(), ids.begin(), ids.end());
    if (side.size() > kMaxTemplateIds) {
      return fields.Error(absl::StrCat("single adds more than ", kMaxTemplateIds, " tokens"));
    }
  }
  return text_seen ? absl::OkStatus() : fields.Error("single lacks the Sequence");
}

absl::Status ParsePostProcessor(const Json& value, TokenizerSpec& spec) {
  bool template_seen = false;
  const auto parse_one = [&](const JsonFields& fields, const std::string& type) -> absl::Status {
    if (type == "ByteLevel") return absl::OkStatus();  // trims offsets, which we do not report
    if (type != "TemplateProcessing") return UnknownType(fields);
    if (template_seen) return fields.Error("a second TemplateProcessing is not supported");
    template_seen = true;
    return ParseTemplate(fields, spec);
  };
  return ForEachComponent(value, "post_processor", "processors", parse_one);
}

absl::Status ParseAddedTokens(const Json& value, std::vector<AddedTokenSpec>& tokens) {
  if (value.is_null()) return absl::OkStatus();
  if (!value.is_array()) {
    return absl::InvalidArgumentError("tokenizer.json: added_tokens is not an array");
  }
  for (size_t i = 0; i < value.size(); ++i) {
    ASSIGN_OR_RETURN(const JsonFields fields,
                     JsonFields::Of(value[i], absl::StrCat("added_tokens[", i, "]")));
    AddedTokenSpec token;
    ASSIGN_OR_RETURN(token.id, fields.Int("id", 0, kMaxTokenId));
    ASSIGN_OR_RETURN(token.content, fields.String("content"));
    if (token.content.empty()) return fields.Error("content is empty");
    RETURN_IF_ERROR(fields.Refuse("single_word", false));
    ASSIGN_OR_RETURN(token.special, fields.Bool("special", false));
    ASSIGN_OR_RETURN(token.normalized, fields.Bool("normalized", !token.special));
    ASSIGN_OR_RETURN(token.lstrip, fields.Bool("lstrip", false));
    ASSIGN_OR_RETURN(token.rstrip, fields.Bool("rstrip", false));
    tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ParseModel(TokenizerFile& file, BpeSpec& model) {
  const auto object = file.rest.find("model");
  if (object == file.rest.end()) {
    return absl::InvalidArgumentError("tokenizer.json: model is missing");
  }
  ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(*object, "model"));
  // The oldest files leave the type out; their BPE shows in the merges.
  if (fields.Has("type") && fields["type"] != "BPE") return UnknownType(fields);
  if (!file.has_vocab || fields.Has("vocab")) return fields.Error("vocab is not an object");
  if (!file.has_merges || fields.Has("merges")) return fields.Error("merges is not an array");
  RETURN_IF_ERROR(fields.Refuse("dropout", 0.0));
  RETURN_IF_ERROR(fields.Refuse("continuing_subword_prefix", ""));
  RETURN_IF_ERROR(fields.Refuse("end_of_word_suffix", ""));
  if (fields.Has("unk_token")) {
    ASSIGN_OR_RETURN(model.unk_token, fields.String("unk_token"));
  }
  ASSIGN_OR_RETURN(model.fuse_unk, fields.Bool("fuse_unk", false));
  ASSIGN_OR_RETURN(model.byte_fallback, fields.Bool("byte_fallback", false));
  ASSIGN_OR_RETURN(model.ignore_merges, fields.Bool("ignore_merges", false));
  model.vocab = std::move(file.vocab);
  model.merges = std::move(file.merges);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> MakeTokenizerSpec(TokenizerFile file) {
  TokenizerSpec spec;
  RETURN_IF_ERROR(ParseModel(file, spec.model));
  ASSIGN_OR_RETURN(const JsonFields root, JsonFields::Of(file.rest, "the file"));
  RETURN_IF_ERROR(ForEachComponent(root["normalizer"], "normalizer", "normalizers",
                                   [&](const JsonFields& fields, const std::string& type) {
                                     return ParseNormalizerStep(fields, type, spec.normalizer);
                                   }));
  RETURN_IF_ERROR(ForEachComponent(root["pre_tokenizer"], "pre_tokenizer", "pretokenizers",
                                   [&](const JsonFields& fields, const std::string& type) {
                                     return ParsePreTokenizerStep(fields, type, spec.pre_tokenizer);
                                   }));
  DecoderParser decoder;
  RETURN_IF_ERROR(ForEachComponent(root["decoder"], "decoder", "decoders",
                                   [&](const JsonFields& fields, const std::string& type) {
                                     return decoder.Add(fields, type);
                                   }));
  ASSIGN_OR_RETURN(spec.decoder, decoder.Finish());
  RETURN_IF_ERROR(ParsePostProcessor(root["post_processor"], spec));
  RETURN_IF_ERROR(ParseAddedTokens(root["added_tokens"], spec.added_tokens));
  return spec;
}

}  // namespace lockstep
