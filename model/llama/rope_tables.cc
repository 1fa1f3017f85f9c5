#include "model/llama/rope_tables.h"

#include <algorithm>
#include <vector>

#include "kernels/base/status_macros.h"

namespace lockstep {

// By parts, as those of a million positions take half a gigabyte.
absl::StatusOr<RopeTables> RopeTables::Allocate(Backend& backend, const RopeShape& shape,
                                                int64_t num_positions) {
  constexpr int64_t kPartPositions = 4096;
  const int64_t table_bytes = BytesFor(shape.head_dim, num_positions) / 2;
  RopeTables tables;
  ASSIGN_OR_RETURN(tables.cos, backend.Allocate(table_bytes));
  ASSIGN_OR_RETURN(tables.sin, backend.Allocate(table_bytes));
  const RopeAngles angles(shape);
  const int64_t part_elements = std::min(kPartPositions, num_positions) * angles.width();
  std::vector<float> cos(static_cast<size_t>(part_elements));
  std::vector<float> sin(cos.size());
  for (int64_t begin = 0; begin < num_positions; begin += kPartPositions) {
    const int64_t end = std::min(begin + kPartPositions, num_positions);
    angles.Write(begin, end, cos.data(), sin.data());
    const int64_t offset = begin * angles.width();
    const int64_t bytes = (end - begin) * angles.width() * int64_t{sizeof(float)};
    backend.CopyToDevice(tables.cos.as<float>() + offset, cos.data(), bytes);
    backend.CopyToDevice(tables.sin.as<float>() + offset, sin.data(), bytes);
  }
  return tables;
}

int64_t RopeTables::BytesFor(int64_t head_dim, int64_t num_positions) {
  return 2 * num_positions * (head_dim / 2) * int64_t{sizeof(float)};
}

}  // namespace lockstep
