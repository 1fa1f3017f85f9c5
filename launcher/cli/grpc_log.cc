#include "launcher/cli/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace lockstep {
namespace {

// Before it aborts; where a thread cannot be made, an assertion may follow or not.
bool IsFatal(absl::string_view message) {
  return absl::StartsWith(message, "assertion failed") ||
         absl::StrContains(message, "pthread_create failed");
}

void ShowFatal(gpr_log_func_args* args) {
  if (!IsFatal(args->message)) return;
  std::fprintf(stderr, "lockstep: gRPC: %s (%s:%d)\n", args->message, args->file, args->line);
}

}  // namespace

void QuietGrpc() {
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function(&ShowFatal);
}

}  // namespace lockstep
