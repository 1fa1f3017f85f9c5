// Whether numbers and texts that ranks say are such as can be. INVALID_ARGUMENT names the field,
// its value and the range. Pure; any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lockstep/v1/worker.pb.h"

namespace lockstep {

inline constexpr int64_t kMaxKvBlocks = int64_t{1} << 30;  // block ids are int32

// Bytes, blocks and the like: at least low, and such that sums of two stay inside int64.
absl::Status CheckCount(absl::string_view field, int64_t value, int64_t low = 0);
// From 0 to kMaxKvBlocks.
absl::Status CheckKvBlocks(absl::string_view field, int64_t blocks);
absl::Status CheckNumerics(const v1::Numerics& numerics);
absl::Status CheckGpu(const v1::Gpu& gpu);
// Also one that is not there.
absl::Status CheckKvRoom(const v1::KvRoom& room);

// Of two that pass. FAILED_PRECONDITION naming what is not the same and both values; `whose`: the
// other's.
absl::Status CheckSameNumerics(const v1::Numerics& numerics, const v1::Numerics& other,
                               absl::string_view whose);

}  // namespace lockstep
