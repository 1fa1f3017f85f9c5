// How many files and sockets this process may hold.
#pragma once

namespace lockstep {

// Raises the soft limit to the hard one (at most 65536), as far as the system lets it. A server of
// gRPC 1.51 whose accept fails for want of descriptors never listens again (CVE-2023-4785), and the
// usual soft limit is 1024.
void RaiseDescriptorLimit();

}  // namespace lockstep
