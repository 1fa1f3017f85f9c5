// What a process of this host is doing, or how it ended: of a rank that says nothing any more.
#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep {

// "it is stopped", "3 of 12 threads wait uninterruptibly (nfs_wait_bit_killable): a driver or
// storage hangs", "2 of 12 threads run" or "all of 12 threads sleep"; of one that has ended, until
// its parent has heard of it, "it was killed by signal 9 (Killed)" or "it ended with exit code 1".
// Empty: it is gone, or the system does not tell.
std::string DescribeProcess(pid_t pid);

}  // namespace lockstep
