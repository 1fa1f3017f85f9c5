// How long a GPU idles in decode steps that are issued as serving issues them: each before the
// tokens of the one before are read. Told by events on the compute stream: idle is the time between
// a step's last piece of work and the next one's first, and all that the stream spends with copies
// between host and device (the batch at a step's begin, what is asked of its logits before the
// choice of tokens, the chosen tokens at its end), while which no kernel of it runs. What passes
// between the kernels of a step is part of the step.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "model/llama/llama_stage.h"
#include "model/llama/uniform_batch.h"
#include "parallel/communicator.h"
#include "tests/gpu/marking_backend.h"

namespace lockstep::bench {

struct StepGaps {
  double step_seconds = 0;  // from a step's begin to the next one's, median
  // The idle part of that.
  double median_share = 0;
  double p95_share = 0;
  // Of which, medians by themselves: between steps, and at copies.
  double between_share = 0;
  double copies_share = 0;
  // Steps before whose last piece of work was issued the device had done all others: within these
  // it may have idled as well.
  double late_share = 0;
};

// Of steps that decode every sequence of `decodes` (new_tokens is 1) with a stage over that backend
// that is all of the model, `groups` being of one rank; the first ones are not measured. Errors:
// the stage's.
absl::StatusOr<StepGaps> MeasureStepGaps(LlamaStage& stage, MarkingBackend& backend,
                                         RankGroups& groups, const UniformBatch& decodes,
                                         int num_steps);

}  // namespace lockstep::bench
