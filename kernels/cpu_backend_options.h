// The backends that compute on this host's processors.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

class Backend;  // kernels/backend.h

// Plain loops, one thread: what every other body is tested against.
std::unique_ptr<Backend> MakeReferenceBackend();

struct CpuBackendOptions {
  int num_threads = 1;
  // Highest instruction set to use: "auto", "scalar", "avx2", "avxvnni", "avx512",
  // "avx512vnni", "avx512bf16".
  // INVALID_ARGUMENT when unknown or not available on this processor.
  std::string isa = "auto";
};
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options);
// What MakeCpuBackend says of an instruction set.
absl::Status CheckIsa(const std::string& isa);

}  // namespace lockstep
