// Whether ranks can keep an output to a constraint: what they cannot compile would end them.
//
// Immutable; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "lockstep/v1/generation.pb.h"
#include "model/grammar/output_constraint.h"
#include "model/tokenizer/tokenizer.h"

namespace lockstep {

class ConstraintCheck {
 public:
  // tokenizer: null where the model has none. has_eos: some token ends its outputs.
  ConstraintCheck(const Tokenizer* tokenizer, bool has_eos);

  // Also of none at all, which is OK. INVALID_ARGUMENT: no output of the model can be constrained,
  // or none by this constraint.
  absl::Status Check(const OutputConstraint& constraint) const;

 private:
  std::string problem_;  // with the model; empty: none
};

}  // namespace lockstep
