// The fields of config.json that say how positions are embedded. Any thread.
#pragma once

#include "absl/status/status.h"
#include "model/config_fields.h"
#include "model/model_config.h"

namespace lockstep {

// Reads rope_theta, and rope_scaling or rope_parameters, as transformers 4 and 5 spell them; with
// YaRN there may be more positions than max_position_embeddings said before. head_dim is known.
// INVALID_ARGUMENT naming field and value.
absl::Status ParseRope(const ConfigFields& fields, ModelConfig& config);

}  // namespace lockstep
