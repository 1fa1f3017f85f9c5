// A kernel in PTX, given by its body, run as if nvcc had made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/support/cuda_emulation/compiled/program.h"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda_emulation::ptx {

// In a body %r0 is the thread, %out the address of 8 bytes of its own; there are registers of all
// kinds besides, shared memory (`own`, `common` and `dynamic`) and local (`depot`).
class PtxTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(TakeFailure(), ""); }

  static absl::StatusOr<std::unique_ptr<Program>> Make(const std::string& body);
  // What each of `threads` threads has stored at %out, after all of them have run.
  std::vector<uint64_t> Run(const std::string& body, int threads = 1, size_t dynamic_bytes = 0);
  // The failure of a kernel that breaks a rule.
  std::string FailureOf(const std::string& body, int threads = 1, size_t dynamic_bytes = 0) {
    Run(body, threads, dynamic_bytes);
    return TakeFailure();
  }

  bool looks_for_races_ = false;
};

}  // namespace lockstep::cuda_emulation::ptx
