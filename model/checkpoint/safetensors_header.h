// The JSON header of a safetensors file, checked while it is parsed. Pure: text in, tensors out;
// any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"

namespace lockstep {

// The format's own limit on the header's length, in bytes.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Tensors in file order. data_begin is the file offset of the first tensor byte (file_offset counts
// from the file's start), data_bytes the bytes from there to the file's end, all of which the
// tensors must cover exactly once. INVALID_ARGUMENT naming the tensor, the value and the limit; the
// caller puts the file's name in front.
absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header,
                                                               int64_t data_begin,
                                                               int64_t data_bytes);

}  // namespace lockstep
