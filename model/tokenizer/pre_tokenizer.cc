#include "model/tokenizer/pre_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {

namespace {

// Of the text that ReplaceAll makes; more, where that is in bounds, too.
size_t MostBytesReplaced(std::string_view text, const NormalizerStep& step) {
  if (step.content.size() <= step.pattern.size()) return text.size();
  const size_t grows = step.content.size() - step.pattern.size();
  const size_t most = text.size() + text.size() / step.pattern.size() * grows;
  if (most <= kMaxNormalizedBytes) return most;
  size_t size = text.size();
  for (size_t at = text.find(step.pattern); at != std::string_view::npos;
       at = text.find(step.pattern, at + step.pattern.size())) {
    size += grows;
  }
  return size;
}

absl::Status CheckSize(size_t num_bytes) {
  if (num_bytes <= kMaxNormalizedBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the text grows beyond ", kMaxNormalizedBytes, " bytes when normalized"));
}

}  // namespace

absl::StatusOr<std::string> Normalize(std::string_view text,
                                      const std::vector<NormalizerStep>& steps) {
  std::string normalized(text);
  for (const NormalizerStep& step : steps) {
    if (normalized.empty()) break;
    switch (step.kind) {
      case NormalizerStep::Kind::kPrepend:
        normalized.insert(0, step.content);
        break;
      case NormalizerStep::Kind::kReplace:
        RETURN_IF_ERROR(CheckSize(MostBytesReplaced(normalized, step)));
        normalized = ReplaceAll(normalized, step.pattern, step.content);
        break;
      case NormalizerStep::Kind::kNfc:
        normalized = ToNfc(normalized);
        break;
    }
    RETURN_IF_ERROR(CheckSize(normalized.size()));
  }
  return normalized;
}

absl::StatusOr<PreTokenizer> PreTokenizer::Make(std::vector<PreTokenizerStep> steps) {
  PreTokenizer pre_tokenizer;
  for (PreTokenizerStep& step : steps) {
    Stage stage{std::move(step), std::nullopt};
    if (!stage.step.regex.empty()) {
      auto regex = RegexSplitter::Compile(stage.step.regex);
      if (!regex.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.json: pre_tokenizer: ", regex.status().message()));
      }
      stage.regex = *std::move(regex);
    }
    pre_tokenizer.stages_.push_back(std::move(stage));
  }
  return pre_tokenizer;
}

absl::Status PreTokenizer::Run(size_t stage, std::string_view text, bool at_start,
                               PieceSink sink) const {
  if (text.empty()) return absl::OkStatus();
  if (stage == stages_.size()) return sink(text);
  bool first = at_start;
  const auto next = [&](std::string_view piece) {
    return Run(stage + 1, piece, std::exchange(first, false), sink);
  };
  switch (stages_[stage].step.kind) {
    case PreTokenizerStep::Kind::kSplit:
      return stages_[stage].regex->Split(text, next);
    case PreTokenizerStep::Kind::kByteLevel:
      return RunByteLevel(stage, text, next);
    case PreTokenizerStep::Kind::kMetaspace:
      return RunMetaspace(stage, text, at_start, next);
  }
  return absl::OkStatus();
}

absl::Status PreTokenizer::RunByteLevel(size_t stage, std::string_view text, PieceSink next) const {
  const PreTokenizerStep& step = stages_[stage].step;
  std::string prefixed;
  if (step.add_prefix_space && text.front() != ' ') text = prefixed = std::string(" ").append(text);
  std::string mapped;
  const auto map = [&](std::string_view piece) {
    mapped.clear();
    AppendByteLevel(piece, mapped);
    return next(mapped);
  };
  return step.regex.empty() ? map(text) : stages_[stage].regex->Split(text, map);
}

absl::Status PreTokenizer::RunMetaspace(size_t stage, std::string_view text, bool at_start,
                                        PieceSink next) const {
  using Scheme = PreTokenizerStep::PrependScheme;
  const PreTokenizerStep& step = stages_[stage].step;
  std::string replaced = ReplaceAll(text, " ", step.replacement);
  const bool prepend =
      step.prepend_scheme == Scheme::kAlways || (step.prepend_scheme == Scheme::kFirst && at_start);
  if (prepend && !replaced.starts_with(step.replacement)) replaced.insert(0, step.replacement);
  if (!step.split) return next(replaced);
  std::string_view rest = replaced;
  while (!rest.empty()) {  // cut before every replacement but a leading one
    const std::string_view piece =
        rest.substr(0, rest.find(step.replacement,
                                 rest.starts_with(step.replacement) ? step.replacement.size() : 0));
    RETURN_IF_ERROR(next(piece));
    rest.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

}  // namespace lockstep
