#include "runtime/worker/rank_vocabulary.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "model/tokenizer/tokenizer.h"

namespace lockstep {
namespace {

absl::StatusOr<std::unique_ptr<grammar::MaskedVocabulary>> ReadVocabulary(
    const std::filesystem::path& model, int64_t vocab_size, Range part,
    std::vector<int32_t> eos_token_ids) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(model));
  const auto text_of = [&](int32_t token) {
    const bool is_text =
        !tokenizer->IsSpecial(token) &&
        std::find(eos_token_ids.begin(), eos_token_ids.end(), token) == eos_token_ids.end();
    return is_text ? tokenizer->TokenBytes(token) : std::string();
  };
  grammar::TokenTexts texts(static_cast<int32_t>(vocab_size), text_of);
  return std::make_unique<grammar::MaskedVocabulary>(
      std::move(texts), static_cast<int32_t>(part.begin), static_cast<int32_t>(part.end),
      std::move(eos_token_ids));
}

}  // namespace

RankVocabulary::RankVocabulary(std::filesystem::path model, int64_t vocab_size, Range part,
                               std::vector<int32_t> eos_token_ids)
    : vocabulary_(std::async(std::launch::async, ReadVocabulary, std::move(model), vocab_size, part,
                             std::move(eos_token_ids))) {}

absl::StatusOr<const grammar::MaskedVocabulary*> RankVocabulary::Get() const {
  const auto& vocabulary = vocabulary_.get();
  if (!vocabulary.ok()) return vocabulary.status();
  return vocabulary->get();
}

}  // namespace lockstep
