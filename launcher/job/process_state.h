// What a process of this host is doing, or how it ended: of a rank that says nothing any more.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The processes that it has started, or adopted, and not waited for yet; none where the system does
// not tell.
std::vector<pid_t> ChildrenOf(pid_t pid);
// Of one that has ended, until its parent has heard of that.
std::optional<int> SignalThatKilled(pid_t pid);
std::string KilledBySignal(int signal);  // "killed by signal 9 (Killed)"

// "it is stopped", "3 of 12 threads wait uninterruptibly (nfs_wait_bit_killable): a driver or
// storage hangs", "2 of 12 threads run" or "all of 12 threads sleep"; of one that has ended, until
// its parent has heard of it, "it was killed by signal 9 (Killed)" or "it ended with exit code 1".
// Empty: it is gone, or the system does not tell.
std::string DescribeProcess(pid_t pid);

}  // namespace lockstep
