// Where test assets lie: $LOCKSTEP_SHARED, else ../shared beside the checkout. Tests that need them
// skip loudly without.
#pragma once

#include <cstdlib>
#include <filesystem>

#include "gtest/gtest.h"

namespace lockstep::testing {

inline std::filesystem::path SharedAssets() {
  if (const char* given = std::getenv("LOCKSTEP_SHARED"); given != nullptr) return given;
  if (const char* source = std::getenv("LOCKSTEP_SOURCE_DIR"); source != nullptr) {
    return std::filesystem::path(source) / ".." / "shared";
  }
  return std::filesystem::path(LOCKSTEP_SOURCE_DIR) / ".." / "shared";
}

}  // namespace lockstep::testing

#define SKIP_WITHOUT_ASSET(path)                                                            \
  if (!std::filesystem::exists(path)) {                                                     \
    GTEST_SKIP() << "SKIPPED: test asset " << (path) << " is absent (set LOCKSTEP_SHARED)"; \
  }
