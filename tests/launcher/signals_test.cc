#include "launcher/base/signals.h"

#include <signal.h>
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

TEST(EndAtInterruptTest, EndsWhatHangsAndNothingLater) {
  const auto hang = [](bool is_over) {
    InterruptWatcher interrupts;
    {
      const EndAtInterrupt early(interrupts, [] { return 7; });
      if (!is_over) {
        ::kill(::getpid(), SIGINT);
        while (true) ::pause();
      }
    }
    ::kill(::getpid(), SIGINT);
    std::_Exit(interrupts.TakeCount() == 1 ? 0 : 1);
  };
  EXPECT_EXIT(hang(false), ::testing::ExitedWithCode(7), "");
  EXPECT_EXIT(hang(true), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lockstep
