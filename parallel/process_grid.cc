#include "parallel/process_grid.h"

#include "absl/strings/str_format.h"

namespace lockstep {

absl::StatusOr<ProcessGrid> ProcessGrid::Create(int tp, int pp) {
  constexpr int64_t kMaxRanks = 65536;
  if (tp < 1 || pp < 1 || static_cast<int64_t>(tp) * pp > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tp %d x pp %d: both must be at least 1 and their product at most %d", tp, pp, kMaxRanks));
  }
  return ProcessGrid(tp, pp);
}

}  // namespace lockstep
