// RoPE's cosines and sines where the kernels read them. Immutable; any thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/device_buffer.h"
#include "model/rope.h"

namespace lockstep {

struct RopeTables {
  DeviceBuffer cos;  // f32 [num_positions, head_dim / 2]
  DeviceBuffer sin;  // likewise

  // Of both. RESOURCE_EXHAUSTED.
  static absl::StatusOr<RopeTables> Allocate(Backend& backend, const RopeShape& shape,
                                             int64_t num_positions);
  static int64_t BytesFor(int64_t head_dim, int64_t num_positions);
};

}  // namespace lockstep
