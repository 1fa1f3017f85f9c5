// Which of our kernel tables this processor and its operating system can run.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {

// Best last; never empty ("scalar" runs anywhere).
std::span<const VectorKernels* const> AvailableKernels();

// By name, or the best for "auto". INVALID_ARGUMENT for a name that is unknown or not available
// here, naming those that are.
absl::StatusOr<const VectorKernels*> FindKernels(const std::string& isa);

}  // namespace lockstep::cpu
