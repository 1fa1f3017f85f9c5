// Several ranks on one GPU: for tests, and for those who have no more.
#pragma once

namespace lockstep {

// NCCL takes two ranks of a host on one GPU for a mistake; with a host's name for each, and sockets
// between them, it serves them; on one host, unless the environment names another interface. For
// this process; before its first group of devices is made.
// Source: NCCL documentation, "Environment Variables": NCCL_HOSTID.
void LetRanksShareAGpu();

}  // namespace lockstep
