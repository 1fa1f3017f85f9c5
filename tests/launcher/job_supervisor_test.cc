#include "launcher/job/job_supervisor.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/fd.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/signals.h"
#include "launcher/job/private_network.h"
#include "tests/support/kept_process.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class JobSupervisorTest : public ::testing::Test {
 protected:
  std::unique_ptr<JobSupervisor> Start(const JobSpec& spec) {
    auto job =
        JobSupervisor::Start(spec, [this](absl::string_view line) { lines_.emplace_back(line); });
    EXPECT_TRUE(job.ok()) << job.status();
    return *std::move(job);
  }
  std::unique_ptr<JobSupervisor> StartShell(const std::string& script) {
    return Start({{"/bin/sh", "-c", script}, {"PATH=/usr/bin:/bin"}});
  }
  // Until the job printed that many lines.
  void WaitForLines(JobSupervisor& job, size_t count) {
    const absl::Time deadline = SteadyNow() + kPatience;
    while (lines_.size() < count && SteadyNow() < deadline) {
      job.ReadOutput();
      absl::SleepFor(absl::Milliseconds(1));
    }
    ASSERT_GE(lines_.size(), count);
  }
  pid_t PidInLine(size_t index) {
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(lines_[index], &pid)) << lines_[index];
    return pid;
  }
  std::vector<std::string> lines_;
};

bool IsGone(pid_t pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

TEST_F(JobSupervisorTest, AnEndIsHeardOfThoughOurParentIgnoredThem) {
  ::signal(SIGCHLD, SIG_IGN);
  auto job = StartShell("exit 7");
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  EXPECT_EQ(job->exit()->code, 7);
}

TEST_F(JobSupervisorTest, TheJobHoldsNothingThatIsOpenHere) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // not closed on exec
  auto job = StartShell("ls /proc/self/fd | wc -l");
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_THAT(lines_, ElementsAre("4"));  // 0 to 2, and the directory
}

TEST_F(JobSupervisorTest, DeliversLinesOfBothStreamsAndTheExitCode) {
  auto job = StartShell("echo one; echo two >&2; printf three; exit 7");
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  EXPECT_THAT(lines_, ElementsAre("one", "two", "three"));
  EXPECT_EQ(job->exit()->code, 7);
  EXPECT_EQ(job->exit()->signal, 0);
}

TEST_F(JobSupervisorTest, GivesTheJobItsInputAndTheEndOfIt) {
  auto job = Start({{"/bin/sh", "-c", "cat; echo end"}, {"PATH=/usr/bin:/bin"}, "s3cret\n"});
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  EXPECT_THAT(lines_, ElementsAre("s3cret", "end"));
}

TEST_F(JobSupervisorTest, APrivateNetworkHasLoopbackAlone) {
  if (!PrivateNetwork().IsPossible()) GTEST_SKIP() << "this machine forbids network namespaces";
  JobSpec spec = {
      {"/bin/sh", "-c", "wc -l </proc/net/route; grep -m1 -o 127.0.0.1 /proc/net/fib_trie; id -u"},
      {"PATH=/usr/bin:/bin"}};
  spec.private_network = true;
  auto job = Start(spec);
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  EXPECT_THAT(lines_, ElementsAre("1", "127.0.0.1", std::to_string(::geteuid())));
}

TEST_F(JobSupervisorTest, AnEndIsSeenThoughSomethingHoldsItsOutput) {
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!pidfd.valid()) GTEST_SKIP() << "this kernel has no pidfds";
  auto job = StartShell("sleep 60 & echo $!; exit 3");
  const absl::Time deadline = SteadyNow() + kPatience;
  bool is_over = false;
  while (!is_over && SteadyNow() < deadline) {
    WaitReadable({job->fd()}, deadline - SteadyNow());
    is_over = job->ReadOutput();
  }
  ASSERT_TRUE(is_over);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_FALSE(IsGone(PidInLine(0)));
  ASSERT_TRUE(job->Wait(SteadyNow()));
  EXPECT_EQ(job->exit()->code, 3);
  EXPECT_TRUE(IsGone(PidInLine(0)));
}

TEST_F(JobSupervisorTest, SaysWhatKilledTheJob) {
  auto job = StartShell("kill -9 $$");
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  EXPECT_EQ(job->exit()->ToString(), "signal 9 (Killed)");
}

TEST_F(JobSupervisorTest, AProgramThatCannotRunIsAnErrorAtOnce) {
  const auto job = JobSupervisor::Start({{"/nonexistent/program"}, {}}, [](absl::string_view) {});
  ASSERT_FALSE(job.ok());
  EXPECT_THAT(std::string(job.status().message()), HasSubstr("/nonexistent/program"));
}

TEST_F(JobSupervisorTest, WaitGivesUpAtItsDeadline) {
  auto job = StartShell("exec sleep 60");
  EXPECT_FALSE(job->Wait(SteadyNow() + absl::Milliseconds(20)));
  EXPECT_FALSE(job->exit().has_value());
}

TEST_F(JobSupervisorTest, TerminateAsksFirst) {
  auto job = StartShell(
      "trap 'echo ended in order; exit 3' TERM; echo ready; while :; do sleep 0.01; done");
  WaitForLines(*job, 1);
  EXPECT_EQ(job->Terminate(kPatience).code, 3);
  EXPECT_THAT(lines_, ElementsAre("ready", "ended in order"));
}

TEST_F(JobSupervisorTest, TerminateKillsWhatDoesNotListen) {
  auto job = StartShell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
  WaitForLines(*job, 1);
  EXPECT_EQ(job->Terminate(absl::Milliseconds(50)).signal, SIGKILL);
}

TEST_F(JobSupervisorTest, NothingSurvivesTheJob) {
  // Grandchildren that outlive their parent, the first in a session of its own.
  auto job = StartShell(
      "setsid sleep 60 >/dev/null 2>&1 & pid=$!; until grep -q ^sleep /proc/$pid/comm; do :; done; "
      "echo $pid; sleep 60 >/dev/null 2>&1 & echo $!");
  ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
  EXPECT_TRUE(IsGone(PidInLine(0)));
  EXPECT_TRUE(IsGone(PidInLine(1)));
}

TEST_F(JobSupervisorTest, WhatDoesNotDieIsNamedAndNotWaitedFor) {
  JobSpec spec = {{"/bin/sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!; exec sleep 60"},
                  {"PATH=/usr/bin:/bin"}};
  spec.kill_patience = absl::Seconds(1);
  for (const bool ends_by_itself : {false, true}) {
    lines_.clear();
    auto job = Start(spec);
    WaitForLines(*job, 1);
    const pid_t undead = PidInLine(0);
    {
      const testing::KeptProcess kept(undead);
      if (!kept.is_kept()) GTEST_SKIP() << "this machine forbids tracing";
      if (ends_by_itself) {
        ::kill(job->pid(), SIGKILL);
        ASSERT_TRUE(job->Wait(SteadyNow() + kPatience));
      } else {
        job->Terminate(absl::ZeroDuration());
      }
      EXPECT_EQ(job->exit()->signal, SIGKILL);
      EXPECT_THAT(job->exit()->survivors, ElementsAre(undead));
    }
    EXPECT_EQ(::waitpid(undead, nullptr, 0), undead);
  }
}

TEST_F(JobSupervisorTest, AJobThatDoesNotDieItselfIsLeft) {
  JobSpec spec = {{"/bin/sh", "-c", "echo $$; exec sleep 60"}, {"PATH=/usr/bin:/bin"}};
  spec.kill_patience = absl::Seconds(1);
  auto job = Start(spec);
  WaitForLines(*job, 1);
  {
    const testing::KeptProcess kept(job->pid());
    if (!kept.is_kept()) GTEST_SKIP() << "this machine forbids tracing";
    job->Terminate(absl::ZeroDuration());
    EXPECT_THAT(job->exit()->survivors, ElementsAre(job->pid()));
  }
  EXPECT_EQ(::waitpid(job->pid(), nullptr, 0), job->pid());
}

TEST_F(JobSupervisorTest, DestructionEndsTheJob) {
  auto job = StartShell("echo $$; exec sleep 60");
  WaitForLines(*job, 1);
  job.reset();
  EXPECT_TRUE(IsGone(PidInLine(0)));
}

TEST_F(JobSupervisorTest, TheJobHasAProcessGroupOfItsOwn) {
  auto job = StartShell("echo $$; exec sleep 60");
  WaitForLines(*job, 1);
  EXPECT_EQ(::getpgid(PidInLine(0)), PidInLine(0));
}

}  // namespace
}  // namespace lockstep
