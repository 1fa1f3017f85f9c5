// The names that functions of this process have in its files.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lockstep::cuda_emulation::ptx {

// As the compiler has mangled it, whoever may call it: NOT_FOUND where the file that holds the
// function has been stripped of names.
absl::StatusOr<std::string> NameOfFunction(const void* function);

// The same of two compilers, which name what is in unnamed namespaces each in its own way.
std::string CommonName(const std::string& mangled);

}  // namespace lockstep::cuda_emulation::ptx
