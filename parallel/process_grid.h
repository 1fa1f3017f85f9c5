// Who is who: the map between a rank and its place in the tensor x pipeline grid. Pure arithmetic.
//
// Ranks of one tensor parallel group are neighbours, so that with one launcher slot per GPU a group
// fills a node and the pipeline crosses nodes: rank = pipeline_stage * tp + tp_rank.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace lockstep {

class ProcessGrid {
 public:
  // INVALID_ARGUMENT unless tp, pp >= 1 and tp * pp <= 65536.
  static absl::StatusOr<ProcessGrid> Create(int tp, int pp);

  int tp() const { return tp_; }
  int pp() const { return pp_; }
  int world_size() const { return tp_ * pp_; }
  int stage_of(int rank) const { return rank / tp_; }
  int tp_rank_of(int rank) const { return rank % tp_; }
  int rank_of(int stage, int tp_rank) const { return stage * tp_ + tp_rank; }

 private:
  ProcessGrid(int tp, int pp) : tp_(tp), pp_(pp) {}
  int tp_;
  int pp_;
};

}  // namespace lockstep
