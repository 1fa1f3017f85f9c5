// Constraints that outputs have, compiled once and kept for a while after the last of them.
//
// Used by the step loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/grammar/output_constraint.h"
#include "model/grammar/token_masks.h"

namespace lockstep::grammar {

class ConstraintCache {
 public:
  // That no output has, and that do not hold much.
  static constexpr size_t kMaxIdle = 32;

  // vocabulary, which must outlive what it gives, is called when there are constraints only.
  using VocabularySource = std::function<absl::StatusOr<const MaskedVocabulary*>()>;
  explicit ConstraintCache(VocabularySource vocabulary) : vocabulary_(std::move(vocabulary)) {}

  // Errors: those of CompileConstraint and of the vocabulary.
  absl::StatusOr<std::shared_ptr<TokenMasks>> Get(const OutputConstraint& constraint);

 private:
  struct Entry {
    OutputConstraint constraint;
    std::shared_ptr<TokenMasks> masks;  // with the outputs that have it
    uint64_t last_use = 0;
  };
  void DropIdle();

  VocabularySource vocabulary_;
  std::vector<Entry> entries_;
  uint64_t num_uses_ = 0;
};

}  // namespace lockstep::grammar
