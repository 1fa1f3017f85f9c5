#include "launcher/job/process_state.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ContainsRegex;

// A child that does `body`, until the test ends it.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) body();
    }
  }
  ~Child() { End(); }
  void End() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  // Until it is described so; fails after a while.
  void Await(const std::string& state) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    std::string seen = DescribeProcess(pid_);
    while (seen != state && absl::Now() < deadline) {
      std::this_thread::yield();
      seen = DescribeProcess(pid_);
    }
    EXPECT_EQ(seen, state);
  }

 private:
  pid_t pid_;
};

TEST(ProcessState, ASleeperSleepsUntilItIsStopped) {
  const Child child([] { ::pause(); });
  child.Await("all of 1 threads sleep");
  ::kill(child.pid(), SIGSTOP);
  child.Await("it is stopped");
  ::kill(child.pid(), SIGCONT);
  child.Await("all of 1 threads sleep");
}

TEST(ProcessState, WhoComputesRuns) {
  const Child child([] { ::getppid(); });
  child.Await("1 of 1 threads run");
}

// As one whose storage hangs: who calls vfork waits so until the child has gone.
TEST(ProcessState, WhoWaitsUninterruptiblyIsSaidTo) {
  const Child child([] {
    const pid_t parent = ::getpid();
    if (::vfork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) ::pause();  // who was killed before that sends no signal
      ::_exit(0);
    }
  });
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  std::string seen;
  while (!absl::StartsWith(seen, "1 of 1 threads wait uninterruptibly") && absl::Now() < deadline) {
    seen = DescribeProcess(child.pid());
  }
  EXPECT_THAT(seen, ContainsRegex("^1 of 1 threads wait uninterruptibly( \\(.+\\))?: a driver"));
}

TEST(ProcessState, ThreadsAreCounted) {
  EXPECT_THAT(DescribeProcess(::getpid()), ContainsRegex("^[0-9]+ of [0-9]+ threads run$"));
}

// Between the opening of its files and their reading, too.
TEST(ProcessState, WhoEndsMeanwhileDoesNoHarm) {
  for (int i = 0; i < 300; ++i) {
    Child child([] {
      std::thread([] { ::pause(); }).detach();
      std::thread([] { ::pause(); }).detach();
      ::pause();
    });
    std::thread killer([&] { ::kill(child.pid(), SIGKILL); });
    child.Await("it was killed by signal 9 (Killed)");
    killer.join();
  }
}

TEST(ProcessState, TellsOfASiblingThatWasKilled) {
  Child child([] { ::pause(); });
  child.Await("all of 1 threads sleep");
  EXPECT_THAT(ChildrenOf(::getpid()), ::testing::Contains(child.pid()));
  EXPECT_EQ(SignalThatKilled(child.pid()), std::nullopt);
  ::kill(child.pid(), SIGKILL);
  child.Await("it was killed by signal 9 (Killed)");
  EXPECT_EQ(SignalThatKilled(child.pid()), SIGKILL);
  EXPECT_THAT(ChildrenOf(::getpid()), ::testing::Contains(child.pid()));
  const pid_t pid = child.pid();
  child.End();
  EXPECT_EQ(SignalThatKilled(pid), std::nullopt);
  EXPECT_THAT(ChildrenOf(::getpid()), ::testing::Not(::testing::Contains(pid)));
  EXPECT_THAT(ChildrenOf(1 << 30), ::testing::IsEmpty());
}

TEST(ProcessState, WhoHasEndedIsDescribedUntilItsParentKnows) {
  Child child([] { ::pause(); });
  const pid_t pid = child.pid();
  ::kill(pid, SIGTERM);
  child.Await("it was killed by signal 15 (Terminated)");
  child.End();
  EXPECT_EQ(DescribeProcess(pid), "");
  const Child failed([] { ::_exit(3); });
  failed.Await("it ended with exit code 3");
  const Child done([] { ::_exit(0); });
  done.Await("");
  EXPECT_EQ(DescribeProcess(1 << 30), "");
}

}  // namespace
}  // namespace lockstep
