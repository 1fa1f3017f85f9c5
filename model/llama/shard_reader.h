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

struct ReadStats {
  int64_t bytes = 0;         // of the parts
  int64_t pinned_bytes = 0;  // of them, read to where the backend's device copies from
};

// The most memory that reading takes where the backend takes pinned rows: slots of 1 MiB, two to a
// thread, so that it reads while its last piece is copied.
inline constexpr int kMostPinnedSlots = 64;
// Reads to where the backend takes rows from: its pinned memory; or staging of num_threads x 1 MiB
// (32 rows if those are more). Weights that are converted while they are read take more. Returns
// when all has been filled and copied. UNAVAILABLE on a read error, RESOURCE_EXHAUSTED for want of
// pinned memory; then some rows may not have been filled. progress may be null.
absl::StatusOr<ReadStats> ReadParts(const std::vector<TensorPart>& parts, Backend& backend,
                                    int num_threads, const LoadProgress& progress);

}  // namespace lockstep
