#include "launcher/job/slurm.h"

#include <cstdlib>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Sets variables and removes all other SLURM_* ones while it lives.
class SlurmTest : public ::testing::Test {
 protected:
  SlurmTest() { Clear(); }
  ~SlurmTest() override { Clear(); }
  static void Set(const char* name, const char* value) { ::setenv(name, value, 1); }
  static void Clear() {
    for (const char* name : {"SLURM_JOB_ID",         "SLURM_JOB_NODELIST",
                             "SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE",
                             "SLURM_JOB_NUM_NODES",  "SLURM_CPUS_PER_TASK",
                             "SLURM_NTASKS",         "SLURM_NTASKS_PER_NODE",
                             "SLURM_STEP_ID",        "SLURM_PROCID",
                             "SLURM_EXPORT_ENV",     "SLURM_GPUS_PER_TASK",
                             "SLURM_TRES_PER_TASK",  "SLURM_GPU_BIND",
                             "SLURM_GPUS_PER_NODE",  "OMPI_MCA_btl",
                             "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}) {
      ::unsetenv(name);
    }
  }
  static void SetAllocation() {
    Set("SLURM_JOB_ID", "17");
    Set("SLURM_JOB_NODELIST", "n[1-2]");
    Set("SLURM_TASKS_PER_NODE", "8(x2)");
    Set("SLURM_NTASKS", "16");
  }
};

TEST_F(SlurmTest, OutsideOfAnAllocationThereIsNone) {
  EXPECT_EQ(*FindSlurmAllocation(), std::nullopt);
  Set("SLURM_JOB_ID", "17");  // alone it may be a leftover
  EXPECT_EQ(*FindSlurmAllocation(), std::nullopt);
}

TEST_F(SlurmTest, AnAllocationHasHostsAndTasks) {
  SetAllocation();
  Set("SLURM_CPUS_PER_TASK", "12");
  const auto allocation = FindSlurmAllocation();
  ASSERT_TRUE(allocation.ok()) << allocation.status();
  ASSERT_TRUE(allocation->has_value());
  EXPECT_EQ((*allocation)->job_id, "17");
  ASSERT_EQ((*allocation)->hosts.size(), 2u);
  EXPECT_EQ((*allocation)->hosts[1].name, "n2");
  EXPECT_EQ((*allocation)->hosts[1].slots, 8);
  EXPECT_EQ((*allocation)->cpus_per_task, 12);
}

TEST_F(SlurmTest, VariablesThatMakeNoSenseAreNamed) {
  SetAllocation();
  Set("SLURM_TASKS_PER_NODE", "8(x3)");
  const auto allocation = FindSlurmAllocation();
  EXPECT_THAT(std::string(allocation.status().message()), HasSubstr("allocation 17"));
}

TEST_F(SlurmTest, OneOfSeveralTasksIsRefused) {
  SetAllocation();
  Set("SLURM_STEP_NUM_TASKS", "16");
  EXPECT_EQ(FindSlurmAllocation().status().code(), absl::StatusCode::kFailedPrecondition);
  Set("SLURM_STEP_NUM_TASKS", "1");  // salloc's interactive step
  EXPECT_TRUE(FindSlurmAllocation().ok());
}

TEST_F(SlurmTest, AStepOfSomeNodesIsRefused) {
  SetAllocation();
  Set("SLURM_STEP_NUM_TASKS", "1");
  Set("SLURM_JOB_NUM_NODES", "2");
  Set("SLURM_STEP_NUM_NODES", "1");
  Set("SLURM_STEP_TASKS_PER_NODE", "1");
  EXPECT_TRUE(FindSlurmAllocation().ok());  // salloc's shell, which keeps the allocation's
  Set("SLURM_TASKS_PER_NODE", "1");
  EXPECT_THAT(std::string(FindSlurmAllocation().status().message()),
              HasSubstr("1 of the allocation's 2 nodes: run lockstep serve without srun"));
}

TEST_F(SlurmTest, TheCommandEndsWithTheWorkers) {
  SlurmAllocation allocation{"17", {{"n1", 8}}, 0};
  const auto command = SrunCommand("/usr/bin/srun", allocation, 16, {"/bin/rank", "a"});
  EXPECT_EQ(command.front(), "/usr/bin/srun");
  EXPECT_EQ(command.back(), "a");
  EXPECT_EQ(command[command.size() - 2], "/bin/rank");
  for (const char* option : {"--mpi=pmix", "--ntasks=16", "--input=0", "--label",
                             "--kill-on-bad-exit=1", "--distribution=arbitrary"}) {
    EXPECT_THAT(command, Contains(option));
  }
  EXPECT_THAT(command, Not(Contains(HasSubstr("--cpus-per-task"))));
  allocation.cpus_per_task = 12;
  EXPECT_THAT(SrunCommand("srun", allocation, 1, {"r"}), Contains("--cpus-per-task=12"));
}

TEST_F(SlurmTest, TheStepKeepsTheAllocationAndGetsItsRankFile) {
  SetAllocation();
  Set("SLURM_STEP_ID", "0");
  Set("SLURM_PROCID", "0");
  Set("SLURM_EXPORT_ENV", "NONE");  // of sbatch --export=NONE
  Set("PMIX_RANK", "0");
  Set("OMPI_MCA_btl", "self,ucx");
  const auto environment = SrunEnvironment("/run/x/ranks", "10.0.0.0/8", std::nullopt);
  for (const char* kept :
       {"SLURM_JOB_ID=17", "SLURM_JOB_NODELIST=n[1-2]", "SLURM_TASKS_PER_NODE=8(x2)",
        "SLURM_HOSTFILE=/run/x/ranks", "OMPI_MCA_btl=self,ucx", "OMPI_MCA_pml=ob1",
        "OMPI_MCA_btl_tcp_if_include=10.0.0.0/8"}) {
    EXPECT_THAT(environment, Contains(kept));
  }
  for (const char* dropped :
       {"SLURM_STEP_ID=", "SLURM_PROCID=", "PMIX_RANK=", "SLURM_NTASKS=", "SLURM_EXPORT_ENV="}) {
    EXPECT_THAT(environment, Not(Contains(HasSubstr(dropped)))) << dropped;
  }
  EXPECT_THAT(environment, Not(Contains("OMPI_MCA_btl=self,vader,tcp")));
}

TEST_F(SlurmTest, RanksSeeAllGpusThatTheJobHasOnTheirHost) {
  SetAllocation();
  Set("SLURM_GPUS_PER_NODE", "8");
  Set("SLURM_GPUS_PER_TASK", "1");
  Set("SLURM_TRES_PER_TASK", "cpu=12,gres/gpu=1");
  Set("SLURM_GPU_BIND", "per_task:1");
  const auto environment = SrunEnvironment("/run/x/ranks", "", std::nullopt);
  EXPECT_THAT(environment, Contains("SLURM_GPUS_PER_NODE=8"));
  for (const char* dropped : {"SLURM_GPUS_PER_TASK=", "SLURM_TRES_PER_TASK=", "SLURM_GPU_BIND="}) {
    EXPECT_THAT(environment, Not(Contains(HasSubstr(dropped)))) << dropped;
  }
}

}  // namespace
}  // namespace lockstep
