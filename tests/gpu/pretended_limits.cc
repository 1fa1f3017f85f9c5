// For gpu_bench on the emulation of CUDA, whose speed nobody asks for.
#include "tests/gpu/device_limits.h"

namespace lockstep::bench {

DeviceLimits MeasureDeviceLimits(int) { return {1e9, 1e9, 1e9, 1e9, 1e9, 2e9, 1e9, 2e9}; }

}  // namespace lockstep::bench
