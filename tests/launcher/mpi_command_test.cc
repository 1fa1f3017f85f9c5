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
  const auto killed = ParseRankKilled("srun: error: n2: task 3: Killed");
  ASSERT_TRUE(killed.has_value());
  EXPECT_EQ(killed->rank, 3);
  EXPECT_EQ(killed->host, "n2");
  EXPECT_EQ(killed->how, "killed by signal 9 (Killed)");
  EXPECT_EQ(ParseRankKilled("srun: error: n2: task 3: Segmentation fault (core dumped)")->how,
            "killed by signal 11 (Segmentation fault)");
  for (const char* text :
       {"srun: error: n2: task 3: Exited with exit code 1", "srun: error: n2: task x: Killed",
        "srun: error: n2: tasks 0-3: Killed", "srun: error: ", "srun: error: a: b: c: d"}) {
    EXPECT_FALSE(ParseRankKilled(text).has_value()) << text;
  }
}

TEST(MpirunOutputTest, BannersAreNoiseAndErrorsAreNot) {
  EXPECT_TRUE(IsJobNoise("--------------------------------------------"));
  EXPECT_TRUE(IsJobNoise("MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"));
  EXPECT_TRUE(IsJobNoise("  "));
  EXPECT_FALSE(IsJobNoise("There are not enough slots available in the system"));
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

// The value after --mca NAME.
std::optional<std::string> Setting(const std::vector<std::string>& command,
                                   const std::string& name) {
  for (size_t i = 0; i + 2 < command.size(); ++i) {
    if (command[i] == "--mca" && command[i + 1] == name) return command[i + 2];
  }
  return std::nullopt;
}

TEST(JobEnvironmentTest, AdditionsReplaceWhatIsThere) {
  ::setenv("LOCKSTEP_TEST_VARIABLE", "old", 1);
  const auto environment = JobEnvironment({{"LOCKSTEP_TEST_VARIABLE", "new"}});
  EXPECT_THAT(environment, Contains("LOCKSTEP_TEST_VARIABLE=new"));
  EXPECT_THAT(environment, Not(Contains("LOCKSTEP_TEST_VARIABLE=old")));
  ::unsetenv("LOCKSTEP_TEST_VARIABLE");
}

TEST(JobEnvironmentTest, KeepsAUsersSettingsOfOpenMpi) {
  ::setenv("OMPI_MCA_btl", "self,ucx", 1);
  EXPECT_THAT(JobEnvironment(), Contains("OMPI_MCA_btl=self,ucx"));
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);  // now they are the outer job's
  EXPECT_THAT(JobEnvironment(), Not(Contains("OMPI_MCA_btl=self,ucx")));
  ::unsetenv("OMPI_MCA_btl");
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
}

TEST(MpiCommandTest, OnOneHostNothingListensWhereOthersReachIt) {
  const auto command = LocalMpiCommand("mpirun", 2, {"/tmp/x", "/dev/shm/x"}, {"r"});
  EXPECT_EQ(Setting(command, "plm"), "isolated");
  EXPECT_EQ(Setting(command, "btl"), "self,vader");
  EXPECT_EQ(Setting(command, "oob_tcp_if_include"), "lo");
  EXPECT_EQ(Setting(command, "oob_tcp_dynamic_ipv4_ports"), std::nullopt);
  const auto pinned =
      LocalMpiCommand("mpirun", 2, {"/tmp/x", "/dev/shm/x"}, {"r"}, PortRange{20000, 20009});
  EXPECT_EQ(Setting(pinned, "oob_tcp_dynamic_ipv4_ports"), "20000-20004");
}

TEST(MpiCommandTest, OverHostsRanksFollowTheRankFile) {
  HostsLaunch launch;
  launch.rank_file = "/run/x/ranks";
  launch.world_size = 16;
  const auto command = HostsMpiCommand("/usr/bin/mpirun", launch, {"/bin/rank", "a"});
  EXPECT_EQ(std::vector<std::string>(command.end() - 8, command.end()),
            (std::vector<std::string>{"--hostfile", "/run/x/ranks", "--map-by", "seq", "-n", "16",
                                      "/bin/rank", "a"}));
  EXPECT_EQ(Setting(command, "plm_rsh_agent"), "ssh");
  EXPECT_THAT(*Setting(command, "plm_rsh_args"), HasSubstr("BatchMode=yes"));
  EXPECT_EQ(Setting(command, "btl"), "self,vader,tcp");
  EXPECT_EQ(Setting(command, "oob_tcp_if_include"), std::nullopt);
}

TEST(MpiCommandTest, OverHostsTheAgentNetworkAndPortsAreTheUsers) {
  HostsLaunch launch;
  launch.rsh_agent = "/opt/agent";
  launch.network = "10.0.0.0/8";
  launch.ports = PortRange{20000, 20009};
  const auto command = HostsMpiCommand("mpirun", launch, {"r"});
  EXPECT_EQ(Setting(command, "plm_rsh_agent"), "/opt/agent");
  EXPECT_EQ(Setting(command, "plm_rsh_args"), std::nullopt);
  EXPECT_EQ(Setting(command, "oob_tcp_if_include"), "10.0.0.0/8");
  EXPECT_EQ(Setting(command, "btl_tcp_if_include"), "10.0.0.0/8");
  EXPECT_EQ(Setting(command, "oob_tcp_dynamic_ipv4_ports"), "20000-20004");
  EXPECT_EQ(Setting(command, "btl_tcp_port_min_v4"), "20005");
  EXPECT_EQ(Setting(command, "btl_tcp_port_range_v4"), "5");
}

TEST(MpiCommandTest, OverHostsTheEnvironmentsSettingsStand) {
  ::setenv("OMPI_MCA_btl", "self,vader,openib", 1);
  ::setenv("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh", 1);
  HostsLaunch launch;
  EXPECT_EQ(Setting(HostsMpiCommand("mpirun", launch, {"r"}), "btl"), std::nullopt);
  EXPECT_EQ(Setting(HostsMpiCommand("mpirun", launch, {"r"}), "plm_rsh_agent"), std::nullopt);
  launch.rsh_agent = "/opt/agent";  // said for this launch
  EXPECT_EQ(Setting(HostsMpiCommand("mpirun", launch, {"r"}), "plm_rsh_agent"), "/opt/agent");
  ::unsetenv("OMPI_MCA_btl");
  ::unsetenv("OMPI_MCA_plm_rsh_agent");
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
