// What the tokens of a rank's vocabulary add to texts, read from the checkpoint in a thread of its
// own: those who wait for weights need not wait for it, and few outputs need it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/grammar/token_masks.h"
#include "parallel/partition.h"

namespace lockstep {

class RankVocabulary {
 public:
  // part: of the vocabulary, this rank's.
  RankVocabulary(std::filesystem::path model, int64_t vocab_size, Range part,
                 std::vector<int32_t> eos_token_ids);

  // Waits until it has been read. Errors: Tokenizer::Load's.
  absl::StatusOr<const grammar::MaskedVocabulary*> Get() const;

 private:
  std::shared_future<absl::StatusOr<std::unique_ptr<grammar::MaskedVocabulary>>> vocabulary_;
};

}  // namespace lockstep
