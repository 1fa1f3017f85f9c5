// What gRPC itself says on standard error.
#pragma once

namespace lockstep {

// Its log lines repeat, at length, what our errors say: but for those that tell why it ends the
// process, they are left out, unless GRPC_VERBOSITY asks for them. Before gRPC is used.
void QuietGrpc();

}  // namespace lockstep
