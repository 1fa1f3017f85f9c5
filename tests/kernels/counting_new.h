// Counts what this test binary allocates with operator new.
#pragma once

#include <cstdint>

namespace lockstep::testing {

int64_t NumAllocations();

}  // namespace lockstep::testing
