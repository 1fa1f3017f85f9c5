#include "launcher/job/job_output.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobLineTest, KnowsWhoWroteIt) {
  const JobLine line = ParseJobLine("[1,13]<stderr>:out of memory: [x]");
  EXPECT_EQ(line.rank, 13);
  EXPECT_EQ(line.text, "out of memory: [x]");
  EXPECT_EQ(ParseJobLine("[1,0]<stdout>:").rank, 0);
}

TEST(JobLineTest, KnowsSrunsLabels) {
  EXPECT_EQ(ParseJobLine("3: out of memory: 7").rank, 3);
  EXPECT_EQ(ParseJobLine("3: out of memory: 7").text, "out of memory: 7");
  EXPECT_EQ(ParseJobLine("007: x").rank, 7);
  EXPECT_EQ(ParseJobLine("12:").rank, 12);
  EXPECT_EQ(ParseJobLine("12: ").text, "");
}

TEST(JobLineTest, LeavesOtherLinesWhole) {
  for (const char* text :
       {"", "[", "[1,2]", "[1,2]<stdin>:x", "[a,b]<stderr>:x", "[host:12] x", "]1,2[<stderr>:x",
        "plain", "12", "12 x", ":", ": x", "1234567: x", "-1: x", "12:30:59 x", "srun: error: x"}) {
    EXPECT_EQ(ParseJobLine(text).rank, std::nullopt) << text;
    EXPECT_EQ(ParseJobLine(text).text, text);
  }
}

TEST(MpirunOutputTest, ItsExitCodeTellsTheSignal) {
  EXPECT_EQ(SignalInExitCode("/usr/bin/mpirun.openmpi", 137), "killed by signal 9 (Killed)");
  EXPECT_EQ(SignalInExitCode("mpirun", 139), "killed by signal 11 (Segmentation fault)");
  for (const int code : {0, 1, 127, 128, 128 + 32, 255, -1}) {
    EXPECT_EQ(SignalInExitCode("mpirun", code), std::nullopt) << code;
  }
  EXPECT_EQ(SignalInExitCode("/usr/bin/srun", 137), std::nullopt);
  EXPECT_EQ(SignalInExitCode("/opt/mpirun/srun", 137), std::nullopt);
}

TEST(MpirunOutputTest, TellsWhatKilledARank) {
  const auto killed = ParseRankKilled(
      "mpirun noticed that process rank 1 with PID 41 on node vm exited on signal 9 (Killed).");
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->rank, 1);
  EXPECT_EQ(killed->host, "vm");
  EXPECT_EQ(killed->how, "killed by signal 9 (Killed)");
  EXPECT_FALSE(ParseRankKilled("the program exited on signal 9 (Killed).").has_value());
  EXPECT_FALSE(ParseRankKilled("mpirun noticed that process rank x with PID 1").has_value());
  EXPECT_FALSE(ParseRankKilled("mpirun noticed that process rank ").has_value());
}

TEST(SrunOutputTest, TellsWhatKilledARank) {
  const auto killed = ParseRankKilled("srun: error: n2: task 3: Segmentation fault (core dumped)");
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->rank, 3);
  EXPECT_EQ(killed->host, "n2");
  EXPECT_EQ(killed->how, "killed by signal 11 (Segmentation fault)");
  for (const char* text :
       {"srun: error: n2: task 3: Exited with exit code 1", "srun: error: n2: task 3: Killed",
        "srun: error: n2: task x: Bus error", "srun: error: n2: tasks 0-3: Bus error",
        "srun: error: ", "srun: error: a: b: c: d"}) {
    EXPECT_FALSE(ParseRankKilled(text).has_value()) << text;
  }
}

TEST(CheckFailureTest, IsTakenFromTheLineWithoutItsPlaceInTheSource) {
  EXPECT_EQ(ParseCheckFailure("/src/kernels/cuda/cuda_status.cc:47: CHECK failed: error == "
                              "cudaSuccess waiting for the GPU: out of memory on GPU 0"),
            "CHECK failed: error == cudaSuccess waiting for the GPU: out of memory on GPU 0");
  EXPECT_FALSE(ParseCheckFailure("a check failed").has_value());
}

TEST(ProcessKilledTest, GoesThereAndBack) {
  const auto killed = ParseProcessKilled(FormatProcessKilled({"node-7.rack", 4711, 9}));
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->host, "node-7.rack");
  EXPECT_EQ(killed->pid, 4711);
  EXPECT_EQ(killed->signal, 9);
  for (const char* text :
       {"", "lockstep-killed ", "lockstep-killed a 1", "lockstep-killed a x 9", "killed a 1 9",
        "lockstep-killed a 1 0", "lockstep-killed a 1 1000", "lockstep-killed a 1 9 2"}) {
    EXPECT_FALSE(ParseProcessKilled(text).has_value()) << text;
  }
}

TEST(RankStartedTest, GoesThereAndBack) {
  const auto started = ParseRankStarted(FormatRankStarted({"node-7.rack", 4711}));
  ASSERT_TRUE(started.has_value());
  EXPECT_EQ(started->host, "node-7.rack");
  EXPECT_EQ(started->pid, 4711);
  for (const char* text :
       {"", "lockstep-rank-started ", "lockstep-rank-started a", "lockstep-rank-started a x",
        "lockstep-rank-started  1", "started a 1", "lockstep-rank-started a 1 2"}) {
    EXPECT_FALSE(ParseRankStarted(text).has_value()) << text;
  }
}

constexpr char kRule[] = "--------------------------------------------------------------------";

class JobOutputTest : public ::testing::Test {
 protected:
  // What is shown of those lines, "rank: text" or "text".
  std::vector<std::string> Shown(std::initializer_list<const char*> lines) {
    std::vector<std::string> shown;
    for (const char* line : lines) {
      for (const JobLine& left : output_.Take(line)) {
        shown.push_back(left.rank ? std::to_string(*left.rank) + ": " + left.text : left.text);
      }
    }
    return shown;
  }
  JobOutput output_;
};

TEST_F(JobOutputTest, RanksAreHeard) {
  EXPECT_THAT(Shown({"[1,2]<stderr>:out of luck", "[1,0]<stdout>:", "3: hello"}),
              ElementsAre("2: out of luck", "3: hello"));
}

TEST_F(JobOutputTest, WhatSeveralStagesNoticeIsToldOnce) {
  EXPECT_EQ(FormatNotice({0, "a", std::nullopt, "no peers"}), "rank 0 on a: no peers");
  const std::string first = FormatNotice({0, "a", 0, "no peers"});
  const std::string same = FormatNotice({8, "b", 1, "no peers"});
  const std::string other = FormatNotice({8, "b", 1, "wrong sums"});
  EXPECT_EQ(other, "rank 8 on b, stage 1: wrong sums");
  EXPECT_THAT(Shown({("[1,0]<stderr>:" + first).c_str(), ("[1,8]<stderr>:" + same).c_str(),
                     ("[1,8]<stderr>:" + other).c_str(), ("[1,0]<stderr>:" + first).c_str()}),
              ElementsAre("0: " + first, "8: " + other, "0: " + first));
  // Not what they print otherwise.
  EXPECT_THAT(Shown({"[1,0]<stderr>:hello: you", "[1,8]<stderr>:hello: you"}),
              ElementsAre("0: hello: you", "8: hello: you"));
}

TEST_F(JobOutputTest, WhatMpirunSaysWhenItIsStoppedWhileItBeginsIsLeftOut) {
  EXPECT_THAT(
      Shown({"[vm:7] [[12664,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in "
             "file ../../../orte/util/show_help.c at line 501",
             "[warn] Epoll MOD(1) on fd 28 failed", "[vm:7] [[1,0],0] ORTE_ERROR_LOG: Not found"}),
      ElementsAre("[vm:7] [[1,0],0] ORTE_ERROR_LOG: Not found"));
}

TEST_F(JobOutputTest, KnownBannersAreLeftOutAndOthersShown) {
  EXPECT_THAT(Shown({kRule, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD",
                     "with errorcode 1.", "", "NOTE: invoking MPI_ABORT causes ...", kRule}),
              IsEmpty());
  EXPECT_THAT(Shown({kRule, "There are not enough slots available in the system", "", kRule}),
              ElementsAre("There are not enough slots available in the system"));
}

TEST_F(JobOutputTest, BannersOfSeveralWritersDoNotMix) {
  EXPECT_THAT(Shown({"[1,1]<stderr>:-------------------------------", kRule,
                     "[1,1]<stderr>:MPI_ABORT was invoked on rank 1", "No such device",
                     "[1,0]<stderr>:says something",
                     "[1,1]<stderr>:-------------------------------", kRule, "after"}),
              ElementsAre("0: says something", "No such device", "after"));
}

TEST_F(JobOutputTest, AKilledRankIsHeardOfInItsBanner) {
  EXPECT_THAT(Shown({kRule,
                     "mpirun noticed that process rank 1 with PID 41 on node vm exited on signal 9 "
                     "(Killed).",
                     kRule}),
              ElementsAre(HasSubstr("noticed that process rank 1")));
}

TEST_F(JobOutputTest, HowOftenABannerWasLeftOutIsNoNews) {
  EXPECT_THAT(Shown({"[a:7] 1 more process has sent help message help-mpi-api.txt / mpi-abort",
                     "[a:7] 7 more processes have sent help message help-opal-shmem-mmap.txt / x"}),
              IsEmpty());
}

TEST_F(JobOutputTest, AnEndlessBannerIsShownInTheEnd) {
  std::vector<std::string> wanted;
  std::vector<std::string> shown = Shown({kRule});
  for (int i = 0; i < 1000; ++i) {
    wanted.push_back(absl::StrCat("line ", i));
    for (std::string& line : Shown({wanted.back().c_str()})) shown.push_back(std::move(line));
  }
  EXPECT_EQ(shown, wanted);
}

// Its last words are there.
TEST_F(JobOutputTest, ABannerThatTheJobCutIsShown) {
  EXPECT_THAT(Shown({kRule, "the rank says", "why it ends"}), IsEmpty());
  std::vector<std::string> left;
  for (const JobLine& line : output_.Finish()) left.push_back(line.text);
  EXPECT_THAT(left, ElementsAre("the rank says", "why it ends"));
  EXPECT_THAT(output_.Finish(), IsEmpty());
  EXPECT_THAT(Shown({"goes on"}), ElementsAre("goes on"));
  Shown({kRule, "ORTE was unable to reliably start one or more daemons."});
  EXPECT_THAT(output_.Finish(), IsEmpty());
  EXPECT_THAT(output_.start_failure(), HasSubstr("mpirun could not start ranks on all hosts"));
}

TEST_F(JobOutputTest, TheRemoteShellsWordsAreTheReason) {
  EXPECT_THAT(Shown({"ssh: connect to host b port 22: Connection refused"}),
              ElementsAre("ssh: connect to host b port 22: Connection refused"));
  EXPECT_THAT(Shown({kRule, "ORTE was unable to reliably start one or more daemons.",
                     "This usually is caused by:", kRule}),
              IsEmpty());
  EXPECT_EQ(output_.start_failure(),
            "mpirun could not start ranks on all hosts: "
            "ssh: connect to host b port 22: Connection refused");
}

TEST_F(JobOutputTest, AWarningIsNotTheReason) {
  const char* refused = "ssh: connect to host b port 22: Connection refused";
  const char* added = "Warning: Permanently added 'c' (ED25519) to the list of known hosts.";
  const char* race =
      "[head:8573] plm:rsh: Warning: setpgid(8580,8580) failed in parent with "
      "errno=Permission denied(13)";
  EXPECT_THAT(Shown({refused, added, race, kRule,
                     "ORTE was unable to reliably start one or more daemons.", kRule}),
              ElementsAre(refused, added));
  EXPECT_THAT(output_.start_failure(), ::testing::EndsWith(refused));
  output_ = JobOutput();
  Shown({added, race, kRule, "ORTE has lost communication with a remote daemon.", kRule});
  EXPECT_THAT(output_.start_failure(), HasSubstr("see --network"));
}

TEST_F(JobOutputTest, ASlurmWithoutPmixIsTheReason) {
  for (const char* line :
       {"srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
        "srun: error: \"--mpi=pmix\" -- long invalid MPI type, --mpi=list for acceptable types."}) {
    output_ = JobOutput();
    EXPECT_THAT(Shown({line}), ElementsAre(line));
    EXPECT_THAT(output_.start_failure(), HasSubstr("this Slurm has no PMIx; give --hosts"));
  }
  output_ = JobOutput();
  Shown({"0: srun: error: Invalid MPI type 'pmix'", "srun: error: Unable to create step"});
  EXPECT_EQ(output_.start_failure(), "");  // a rank's own words, another error
}

TEST_F(JobOutputTest, SlurmsEndOfAStepIsLeftOut) {
  EXPECT_THAT(Shown({"srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
                     "0: slurmstepd-a: error: *** STEP 2.0 ON a CANCELLED AT 2026 ***",
                     "srun: error: a: task 0: Exited with exit code 1",
                     "srun: error: b: tasks 2-3: Killed"}),
              IsEmpty());
  EXPECT_THAT(Shown({"srun: error: Unable to create step: Invalid user id"}),
              ElementsAre("srun: error: Unable to create step: Invalid user id"));
}

}  // namespace
}  // namespace lockstep
