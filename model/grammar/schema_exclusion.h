// Whether at most one of oneOf's alternatives can be valid, as far as their types and values tell.
//
// Pure functions, any thread.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "model/grammar/schema_expansion.h"

namespace lockstep::grammar {

// Alternatives exclude each other if they are of different types, have no value in common, or are
// objects of which one requires a property that the other has with other values or types only, or
// refuses. INVALID_ARGUMENT: two do not, and which. schema: that has the oneOf.
absl::Status CheckExclusive(const SchemaJson& schema, std::span<const SchemaParts> alternatives,
                            const SchemaDocument& document, SchemaWork& work);

}  // namespace lockstep::grammar
