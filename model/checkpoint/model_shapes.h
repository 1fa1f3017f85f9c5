// The shapes of well-known models, for synthesizing checkpoints and planning without having one.
// Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace lockstep {

// "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b" (or the last
// part alone: "8b"), and "tiny", for trying things out. Case does not matter. INVALID_ARGUMENT
// naming the nearest shape and all there are.
absl::StatusOr<ModelConfig> BuiltInShape(const std::string& name);
std::vector<std::string> BuiltInShapeNames();

}  // namespace lockstep
