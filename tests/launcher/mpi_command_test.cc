#include "launcher/job/mpi_command.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(JobLineTest, KnowsWhoWroteIt) {
  const JobLine line = ParseJobLine("[1,13]<stderr>:out of memory: [x]");
  EXPECT_EQ(line.rank, 13);
  EXPECT_EQ(line.text, "out of memory: [x]");
  EXPECT_EQ(ParseJobLine("[1,0]<stdout>:").rank, 0);
}

TEST(JobLineTest, LeavesOtherLinesWhole) {
  for (const char* text : {"", "[", "[1,2]", "[1,2]<stdin>:x", "[a,b]<stderr>:x", "[host:12] x",
                           "]1,2[<stderr>:x", "plain"}) {
    EXPECT_EQ(ParseJobLine(text).rank, std::nullopt) << text;
    EXPECT_EQ(ParseJobLine(text).text, text);
  }
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

TEST(MpirunOutputTest, BannersAreNoiseAndErrorsAreNot) {
  EXPECT_TRUE(IsMpirunNoise("--------------------------------------------"));
  EXPECT_TRUE(IsMpirunNoise("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"));
  EXPECT_TRUE(IsMpirunNoise("  "));
  EXPECT_FALSE(IsMpirunNoise("There are not enough slots available in the system"));
}

TEST(JobEnvironmentTest, LeavesOutAnEnclosingLaunch) {
  ::setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  ::setenv("LOCKSTEP_TEST_VARIABLE", "kept", 1);
  const std::vector<std::string> environment = JobEnvironment();
  EXPECT_THAT(environment, Contains("LOCKSTEP_TEST_VARIABLE=kept"));
  EXPECT_THAT(environment, Not(Contains(HasSubstr("OMPI_COMM_WORLD_RANK"))));
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  ::unsetenv("LOCKSTEP_TEST_VARIABLE");
}

TEST(MpiCommandTest, EndsWithTheWorkersCommandLine) {
  const auto command =
      LocalMpiCommand("/usr/bin/mpirun", 6, {"/tmp/x", "/dev/shm/x"}, {"/bin/rank", "a", "b"});
  ASSERT_GE(command.size(), 5u);
  EXPECT_EQ(command.front(), "/usr/bin/mpirun");
  EXPECT_EQ(std::vector<std::string>(command.end() - 5, command.end()),
            (std::vector<std::string>{"-n", "6", "/bin/rank", "a", "b"}));
}

}  // namespace
}  // namespace lockstep
