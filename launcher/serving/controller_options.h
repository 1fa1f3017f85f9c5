// From flags to the model and the controller's options.
#pragma once

#include "launcher/cli/serving_flags.h"
#include "model/checkpoint/inspect.h"
#include "runtime/controller/controller.h"

namespace lockstep {

// Errors of InspectModel and of an incomplete checkpoint. A layout that the model does not divide
// into is an error of usage.
absl::StatusOr<ModelSummary> InspectServedModel(const ModelFlags& flags);

// Without secret, worker_listen, epoch and observer. Reads the files of keys and tokens: errors as
// of ApplySecurity and CheckControllerOptions.
absl::StatusOr<ControllerOptions> MakeControllerOptions(const ModelFlags& model,
                                                        const ModelConfig& config,
                                                        const ControllerFlags& controller);

}  // namespace lockstep
