// What the files of cuda_ranks_test share: ranks, as processes, that compute on a GPU each or on
// one for all.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/accelerator.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "tests/parallel/local_ranks.h"

namespace lockstep::testing {

// On the GPU whose turn it is by rank; options.device is set here.
std::function<std::unique_ptr<Backend>()> BackendsOf(const LocalRank& rank,
                                                     AcceleratorOptions options);

// Messages of up to so many hidden states between stages, and as many tokens back.
absl::StatusOr<RankGroups> OverDevices(Backend& backend, RankGroups& host,
                                       int64_t max_hidden_states, int64_t max_num_seqs);

// The part "narrow" (cuda_narrow_ranks_test.cc).
absl::Status GenerateInNarrowTypes(const LocalRank& rank);

}  // namespace lockstep::testing
