// Ends this process when its parent does, so that a rank never outlives the mpirun that started it.
#pragma once

namespace lockstep {

// Starts a thread that sleeps until the parent process is gone and then ends this one. Unlike
// PR_SET_PDEATHSIG it does not depend on which of the parent's threads forked (mpirun uses
// short-lived ones for many ranks). Does nothing where the kernel has no pidfd (Linux before 5.3).
void EndWithParent();

}  // namespace lockstep
