#include "launcher/base/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// In a process of its own, whose signals they are.
TEST(InterruptWatcherTest, HangupsCountOnce) {
  const auto count = [] {
    InterruptWatcher interrupts;
    ::kill(::getpid(), SIGHUP);
    const bool first = interrupts.TakeCount() == 1;
    ::kill(::getpid(), SIGHUP);
    const bool again = interrupts.TakeCount() == 0;
    ::kill(::getpid(), SIGINT);
    ::kill(::getpid(), SIGTERM);
    std::_Exit(first && again && interrupts.TakeCount() == 2 ? 0 : 1);
  };
  EXPECT_EXIT(count(), ::testing::ExitedWithCode(0), "");
}

TEST(InterruptWatcherTest, ChildrenAreWaitedForWhereTheyWereIgnored) {
  const auto wait = [] {
    ::signal(SIGCHLD, SIG_IGN);
    const InterruptWatcher interrupts;
    const pid_t child = ::fork();
    if (child == 0) std::_Exit(7);
    int status = 0;
    std::_Exit(::waitpid(child, &status, 0) == child ? WEXITSTATUS(status) : 1);
  };
  EXPECT_EXIT(wait(), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace lockstep
