// From flags to the controller's options.
#pragma once

#include "launcher/cli/serving_flags.h"
#include "runtime/controller/controller.h"

namespace lockstep {

// Without secret, worker_listen, epoch and observer. Reads the files of keys and tokens: errors as
// of ApplySecurity.
absl::StatusOr<ControllerOptions> MakeControllerOptions(const ModelFlags& model,
                                                        const ControllerFlags& controller);

}  // namespace lockstep
