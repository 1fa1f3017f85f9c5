#include "launcher/job/mpi_command.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What the tests are run with is not for the commands that they look at.
class MpiCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      if (name.starts_with("NCCL_") || name.starts_with("LOCKSTEP_CUDA_") ||
          name == "LD_LIBRARY_PATH") {
        names.push_back(name);
      }
    }
    for (const std::string& name : names) ::unsetenv(name.c_str());
  }
};

TEST(MpiHostNameTest, ThoseThatMpirunDiesOfAreRefused) {
  const std::string longest(56, 'a');
  EXPECT_TRUE(CheckMpiHostName("laptop").ok());
  EXPECT_TRUE(CheckMpiHostName(longest).ok());
  EXPECT_TRUE(CheckMpiHostName(longest + ".example.org").ok());
  for (const std::string& name : {longest + "a", longest + "a.example.org"}) {
    const absl::Status status = CheckMpiHostName(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("57 characters, the most are 56: give " + name));
  }
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

// Open MPI would look for one of a user whom nobody knows.
TEST(JobEnvironmentTest, HasAHome) {
  const char* const home = std::getenv("HOME");
  const std::string old = home != nullptr ? home : "/";
  ::setenv("HOME", "/home/x", 1);
  EXPECT_THAT(JobEnvironment(), Contains("HOME=/home/x"));
  ::unsetenv("HOME");
  EXPECT_THAT(JobEnvironment(), Contains("HOME=/"));
  ::setenv("HOME", old.c_str(), 1);
}

TEST(JobEnvironmentTest, KeepsAUsersSettingsOfOpenMpi) {
  ::setenv("OMPI_MCA_btl", "self,ucx", 1);
  EXPECT_THAT(JobEnvironment(), Contains("OMPI_MCA_btl=self,ucx"));
  ::setenv("OMPI_COMM_WORLD_SIZE", "2", 1);  // now they are the outer job's
  EXPECT_THAT(JobEnvironment(), Not(Contains("OMPI_MCA_btl=self,ucx")));
  ::unsetenv("OMPI_MCA_btl");
  ::unsetenv("OMPI_COMM_WORLD_SIZE");
}

TEST_F(MpiCommandTest, OnOneHostNothingListensWhereOthersReachIt) {
  const auto command = LocalMpiCommand("mpirun", 2, {"/tmp/x", "/dev/shm/x"}, {"r"});
  EXPECT_EQ(Setting(command, "plm"), "isolated");
  EXPECT_EQ(Setting(command, "regx"), "naive");
  EXPECT_EQ(Setting(command, "btl"), "self,vader");
  EXPECT_EQ(Setting(command, "oob_tcp_if_include"), "lo");
  EXPECT_EQ(Setting(command, "oob_tcp_dynamic_ipv4_ports"), std::nullopt);
  const auto pinned =
      LocalMpiCommand("mpirun", 2, {"/tmp/x", "/dev/shm/x"}, {"r"}, PortRange{20000, 20009});
  EXPECT_EQ(Setting(pinned, "oob_tcp_dynamic_ipv4_ports"), "20000-20004");
}

TEST_F(MpiCommandTest, OverHostsRanksFollowTheRankFile) {
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

TEST_F(MpiCommandTest, OverHostsTheAgentNetworkAndPortsAreTheUsers) {
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

TEST_F(MpiCommandTest, OverHostsTheEnvironmentsSettingsStand) {
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

// The variables that ranks on other hosts get of this environment.
std::vector<std::string> Exports() {
  const auto command = HostsMpiCommand("mpirun", HostsLaunch(), {"r", "-x", "not mpirun's"});
  std::vector<std::string> names;
  for (size_t i = 0; i + 3 < command.size(); ++i) {
    if (command[i] == "-x") names.push_back(command[i + 1]);
  }
  return names;
}

TEST_F(MpiCommandTest, OverHostsRanksHearWhatNcclIsToldAndWhereLibrariesAre) {
  ::setenv("LD_LIBRARY_PATH", "/opt/nccl/lib", 1);
  ::setenv("NCCL_P2P_DISABLE", "1", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
  ::setenv("LOCKSTEP_CUDA_PLUGIN", "/opt/plugin.so", 1);
  ::setenv("NCCL_HOSTID", "a", 1);  // of one host, as are its GPUs' numbers
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  EXPECT_THAT(Exports(), ElementsAre("LD_LIBRARY_PATH", "LOCKSTEP_CUDA_PLUGIN", "NCCL_P2P_DISABLE",
                                     "NCCL_SOCKET_IFNAME"));
  ::setenv("OMPI_MCA_mca_base_env_list", "NCCL_P2P_DISABLE", 1);
  EXPECT_THAT(Exports(), IsEmpty()) << "mpirun takes one or the other";
  for (const char* name :
       {"LD_LIBRARY_PATH", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "LOCKSTEP_CUDA_PLUGIN",
        "NCCL_HOSTID", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_mca_base_env_list"}) {
    ::unsetenv(name);
  }
}

TEST_F(MpiCommandTest, EndsWithTheWorkersCommandLine) {
  const auto command =
      LocalMpiCommand("/usr/bin/mpirun", 6, {"/tmp/x", "/dev/shm/x"}, {"/bin/rank", "a", "b"});
  ASSERT_GE(command.size(), 5u);
  EXPECT_EQ(command.front(), "/usr/bin/mpirun");
  EXPECT_EQ(std::vector<std::string>(command.end() - 5, command.end()),
            (std::vector<std::string>{"-n", "6", "/bin/rank", "a", "b"}));
}

}  // namespace
}  // namespace lockstep
