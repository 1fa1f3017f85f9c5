// What an output's text must be, and the grammar of it.
//
// Pure functions, any thread.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"
#include "model/grammar/grammar.h"
#include "model/grammar/output_constraint.h"

namespace lockstep::grammar {

// INVALID_ARGUMENT says what of the constraint is wrong, unsupported or too large.
absl::StatusOr<Grammar> CompileConstraint(const OutputConstraint& constraint);

}  // namespace lockstep::grammar
