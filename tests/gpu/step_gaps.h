// How long a GPU idles between decode steps that are issued as serving issues them: each before the
// tokens of the one before are read. Steps are told apart by events on the compute stream.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"
#include "parallel/communicator.h"

namespace lockstep::bench {

struct StepGaps {
  double step_seconds = 0;  // from a step's begin to the next one's, median
  // Of that, the part from the step's end to the next one's begin.
  double median_share = 0;
  double p95_share = 0;
  // Steps before whose last piece of work was issued the device had done all others: within these
  // it may have idled as well.
  double late_share = 0;
};

// Of steps that decode every sequence of `decodes` (new_tokens is 1) with a stage that is all of
// the model, `groups` being of one rank; the first ones are not measured. Errors: the stage's.
absl::StatusOr<StepGaps> MeasureStepGaps(LlamaStage& stage, cuda::CudaBackend& backend,
                                         RankGroups& groups, const UniformBatch& decodes,
                                         int num_steps);

}  // namespace lockstep::bench
