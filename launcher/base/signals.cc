#include "launcher/base/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {

InterruptWatcher::InterruptWatcher() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  // A shell's background job starts with SIGINT ignored, and ignored signals never arrive, blocked
  // or not. An ignored SIGHUP (nohup) is left so.
  for (const int signal : {SIGINT, SIGTERM}) ::signal(signal, SIG_DFL);
  LS_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &signals, nullptr), 0);
  fd_ = Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  LS_CHECK(fd_.valid()) << "signalfd";
}

int InterruptWatcher::TakeCount() {
  int count = 0;
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const bool is_hangup = info.ssi_signo == SIGHUP;
    if (!is_hangup || !has_hung_up_) ++count;
    has_hung_up_ = has_hung_up_ || is_hangup;
  }
  return count;
}

EndAtInterrupt::EndAtInterrupt(const InterruptWatcher& interrupts, std::function<int()> last_words)
    : over_(::eventfd(0, EFD_CLOEXEC)) {
  LS_CHECK(over_.valid()) << "eventfd";
  thread_ = std::thread([over = over_.get(), fd = interrupts.fd(), words = std::move(last_words)] {
    pollfd polled[] = {{over, POLLIN, 0}, {fd, POLLIN, 0}};
    while (::poll(polled, 2, -1) < 0) {
    }
    if (polled[0].revents != 0) return;
    const int code = words();
    std::fflush(nullptr);
    ::_exit(code);
  });
}

EndAtInterrupt::~EndAtInterrupt() {
  ::eventfd_write(over_.get(), 1);
  thread_.join();
}

void TakeWriteErrors() {
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
}

void WaitReadable(const std::vector<int>& fds, absl::Duration timeout) {
  std::vector<pollfd> polled;
  for (const int fd : fds) polled.push_back({fd, POLLIN, 0});
  const int64_t ms = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1))), 0, 1 << 30);
  ::poll(polled.data(), polled.size(),
         timeout == absl::InfiniteDuration() ? -1 : static_cast<int>(ms));
}

}  // namespace lockstep
