// What NCCL is told by the environment, where that says nothing else: of this process, before it
// has groups of devices or threads that read the environment.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// By itself NCCL registers the memory of collectives that are recorded, and then all ranks must
// have recorded them; but a rank that has no memory for a recording runs the step as it is while
// the others replay theirs. Source: NCCL documentation, "User Buffer Registration".
void LeaveRecordingsUnregistered();

// NCCL connects ranks over these interfaces alone, for which it would else take the first of the
// host that is neither loopback nor docker's, whichever network that is in. Source: NCCL
// documentation, "Environment Variables": NCCL_SOCKET_IFNAME.
void ConnectOver(const std::vector<std::string>& interfaces);

// Several ranks on one GPU: for tests, and for those who have no more. NCCL takes two ranks of a
// host on one GPU for a mistake; with a host's name for each, and sockets between them, it serves
// them; on one host, unless the environment names another interface. Source: NCCL documentation,
// "Environment Variables": NCCL_HOSTID.
void LetRanksShareAGpu();

}  // namespace lockstep
