// The body of Communicator over stream sockets, one to each peer: for ranks that are processes of
// one machine and have no MPI. Whoever must wait blocks.
#pragma once

#include <memory>
#include <vector>

#include "parallel/communicator.h"

namespace lockstep::testing {

// sockets[r]: to rank r, -1 for r = rank. They are not closed.
std::unique_ptr<Communicator> MakeSocketCommunicator(int rank, std::vector<int> sockets);

}  // namespace lockstep::testing
