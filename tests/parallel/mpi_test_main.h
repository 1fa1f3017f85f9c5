// main() of tests that are ranks of an MPI job: every rank runs every test.
#pragma once

#include "parallel/mpi_communicator.h"

namespace lockstep::testing {

// Started before the tests run.
const MpiSession& TestSession();

}  // namespace lockstep::testing
