// How fast blocks of a KV cache go to the host's memory and come back (Backend::OffloadKv,
// RestoreKv and PrefetchKv), beside what one long copy of pinned memory reaches.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_backend.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/device_limits.h"

namespace lockstep::bench {

struct KvCopySize {
  int64_t num_blocks = 64;  // copied by one call
  int64_t num_pieces = 0;
  int64_t piece_bytes = 0;
  int num_calls = 1;  // of a measurement
};

// {"blocks", "pieces", "piece_bytes", and of "offload", "restore" and "prefetch" each {"gb_per_s",
// "share_of_copies"}}: medians of calls one after the other, each with its events and waits. Ends
// the process where bytes come back that did not go.
nlohmann::json MeasureKvCopies(cuda::CudaBackend& backend, const KvCopySize& size,
                               const DeviceLimits& limits);

}  // namespace lockstep::bench
