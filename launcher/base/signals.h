// Interrupts (SIGINT, SIGTERM, SIGHUP) as something to poll, instead of handlers that may do next
// to nothing.
//
// Construct it in main's thread before any other thread starts: threads inherit the blocked
// signals.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/fd.h"

namespace lockstep {

class InterruptWatcher {
 public:
  InterruptWatcher();
  int fd() const { return fd_.get(); }
  // How many interrupts arrived since the last call. Of hangups the first: when a terminal is
  // closed, the kernel and the shell both tell.
  int TakeCount();

 private:
  Fd fd_;
  bool has_hung_up_ = false;
};

// While it lives, an interrupt ends the process, with what last_words returns as its exit code: for
// what may hang (storage, name servers) before there is anything to end in order. A thread of its
// own calls last_words.
class EndAtInterrupt {
 public:
  EndAtInterrupt(const InterruptWatcher& interrupts, std::function<int()> last_words);
  ~EndAtInterrupt();
  EndAtInterrupt(const EndAtInterrupt&) = delete;
  EndAtInterrupt& operator=(const EndAtInterrupt&) = delete;

 private:
  const Fd over_;  // an eventfd
  std::thread thread_;
};

// Writing to a pipe that nobody reads any more, or beyond the largest file that this user may have,
// becomes an error instead of the end of the process. For servers, whose work goes on without
// readers of their output; a client in front of `head` should end. Programs started later inherit
// it, unless the starter resets it.
void TakeWriteErrors();

// Sleeps until one of the descriptors is readable (those below 0 are not watched) or the time is
// over.
void WaitReadable(const std::vector<int>& fds, absl::Duration timeout);

}  // namespace lockstep
