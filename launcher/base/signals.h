// Interrupts (SIGINT, SIGTERM, SIGHUP) as something to poll, instead of handlers that may do next
// to nothing.
//
// Construct it in main's thread before any other thread starts: threads inherit the blocked
// signals.
#pragma once

#include "absl/time/time.h"
#include "launcher/base/fd.h"

namespace lockstep {

class InterruptWatcher {
 public:
  InterruptWatcher();
  int fd() const { return fd_.get(); }
  // How many interrupts arrived since the last call.
  int TakeCount();

 private:
  Fd fd_;
};

// Sleeps until one of two descriptors is readable (fd < 0: not watched) or the time is over.
void WaitReadable(int fd_a, int fd_b, absl::Duration timeout);

}  // namespace lockstep
