#include "model/tokenizer/vocabulary.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

absl::Status CheckLength(std::string_view token) {
  if (token.size() <= kMaxTokenBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: the token ", Quote(token),
                                                 " has ", token.size(), " bytes, more than ",
                                                 kMaxTokenBytes));
}

}  // namespace

absl::StatusOr<Vocabulary> Vocabulary::Make(TokenizerSpec& spec) {
  Vocabulary vocabulary;
  int32_t largest = -1;
  for (const auto& [token, id] : spec.model.vocab) largest = std::max(largest, id);
  for (const AddedTokenSpec& token : spec.added_tokens) largest = std::max(largest, token.id);
  if (largest < 0) return absl::InvalidArgumentError("tokenizer.json: model: vocab is empty");
  vocabulary.content_.resize(largest + 1);
  vocabulary.kind_.resize(largest + 1, Kind::kNone);
  RETURN_IF_ERROR(vocabulary.AddModelTokens(spec.model.vocab));
  RETURN_IF_ERROR(vocabulary.AddAddedTokens(spec.added_tokens));
  return vocabulary;
}

absl::Status Vocabulary::AddModelTokens(std::vector<std::pair<std::string, int32_t>>& vocab) {
  model_.reserve(vocab.size());
  for (auto& [token, id] : vocab) {
    RETURN_IF_ERROR(CheckLength(token));
    if (kind_[id] != Kind::kNone) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: vocab: ", Quote(token),
                                                     " and ", Quote(content_[id]),
                                                     " both have the id ", id));
    }
    content_[id] = std::move(token);
    kind_[id] = Kind::kModel;
    if (!model_.emplace(content_[id], id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.json: vocab: ", Quote(content_[id]), " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status Vocabulary::AddAddedTokens(const std::vector<AddedTokenSpec>& tokens) {
  for (const AddedTokenSpec& token : tokens) {
    RETURN_IF_ERROR(CheckLength(token.content));
    const auto conflict = [&](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.json: added_tokens: ", Quote(token.content), " with id ",
                       token.id, ": ", what));
    };
    const std::optional<int32_t> model_id = ModelId(token.content);
    if (model_id.has_value() && *model_id != token.id) {
      return conflict(absl::StrCat("vocab gives it the id ", *model_id));
    }
    if (!model_id.has_value() && kind_[token.id] != Kind::kNone) {
      return conflict(absl::StrCat("the id belongs to ", Quote(content_[token.id])));
    }
    // The map's key views into an equal content: leave it alone.
    if (!model_id.has_value()) content_[token.id] = token.content;
    if (!added_.emplace(content_[token.id], token.id).second) return conflict("it occurs twice");
    kind_[token.id] = token.special ? Kind::kSpecial : Kind::kAdded;
  }
  return absl::OkStatus();
}

}  // namespace lockstep
