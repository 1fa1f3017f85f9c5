// Whether processes of this machine can open each other's device memory (CUDA IPC), where tests
// need it. LOCKSTEP_CUDA_IPC=0 says that they cannot: everything then goes through NCCL.
#pragma once

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace lockstep::testing {

inline bool HasCudaIpc() {
  const char* given = std::getenv("LOCKSTEP_CUDA_IPC");
  return given == nullptr || std::string_view(given) != "0";
}

// What groups say when they do without, or time nothing. A failure unless it is expected.
inline void TakeNotice(const std::string& notice) {
  const bool is_of_shared_gpus = notice.find("shares its GPU") != std::string::npos;
  if (HasCudaIpc() && !is_of_shared_gpus) {
    ADD_FAILURE() << notice << " (LOCKSTEP_CUDA_IPC=0 expects that)";
  } else {
    std::cerr << notice << std::endl;
  }
}

}  // namespace lockstep::testing
