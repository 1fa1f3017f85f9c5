// Reads parts of tensors with several threads, in pieces small enough to stage, and hands the rows
// to whoever keeps them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "model/checkpoint/stored_matrix.h"
#include "model/llama/weight_file.h"
#include "parallel/partition.h"

namespace lockstep {

// The part of a tensor that a rank keeps. fill gets consecutive rows, the first being `row` of the
// part; it is called concurrently for disjoint rows. A vector is one row.
struct TensorPart {
  const RowSource* source = nullptr;
  Range rows;
  Range columns;
  std::function<void(int64_t row, const HostRows& rows)> fill;

  int64_t bytes() const { return source->StoredBytes(rows, columns); }
};

// Staging memory is num_threads x 1 MiB (32 rows if those are more), more for weights that are
// converted. UNAVAILABLE on a read error; then some rows may not have been filled. progress may
// be null. Returns the bytes of the parts.
absl::StatusOr<int64_t> ReadParts(const std::vector<TensorPart>& parts, int num_threads,
                                  const LoadProgress& progress);

}  // namespace lockstep
