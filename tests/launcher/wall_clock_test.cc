// Jobs on a machine whose clock is set while they end.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "gtest/gtest.h"
#include "launcher/job/job_supervisor.h"
#include "tests/support/temp_directory.h"
#include "tests/support/wall_clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

class JobClockTest : public ::testing::Test {
 protected:
  ~JobClockTest() override { testing::SetWallClockAhead(0); }
};

std::unique_ptr<JobSupervisor> StartShell(const std::string& script,
                                          JobSupervisor::OnLine on_line) {
  auto job = JobSupervisor::Start({{"/bin/sh", "-c", script}, {"PATH=/usr/bin:/bin"}}, on_line);
  EXPECT_TRUE(job.ok()) << job.status();
  return *std::move(job);
}

void ReadFirstLine(JobSupervisor& job, const int& num_lines) {
  while (num_lines == 0) job.ReadOutput();
}

TEST_F(JobClockTest, AClockSetForwardKillsNothing) {
  const testing::TempDirectory scratch;
  const std::filesystem::path go = scratch / "go";
  int num_lines = 0;
  auto job = StartShell("end() { until test -e " + go.string() +
                            "; do echo waiting; sleep 0.01; done; exit 3; }; trap end TERM; "
                            "echo ready; while :; do sleep 0.01; done",
                        [&](absl::string_view) {
                          ++num_lines;
                          if (num_lines == 2) testing::SetWallClockAhead(1000);
                          if (num_lines == 10) std::ofstream(go).close();
                        });
  ReadFirstLine(*job, num_lines);
  EXPECT_EQ(job->Terminate(kPatience).ToString(), "exit code 3");
}

TEST_F(JobClockTest, AClockSetBackLengthensNoGrace) {
  int num_lines = 0;
  auto job = StartShell("trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done",
                        [&](absl::string_view) {
                          if (++num_lines == 2) testing::SetWallClockAhead(-1000);
                        });
  ReadFirstLine(*job, num_lines);
  EXPECT_EQ(job->Terminate(absl::Milliseconds(500)).signal, SIGKILL);
}

}  // namespace
}  // namespace lockstep
