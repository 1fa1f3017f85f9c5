#include "launcher/serving/launch_plan.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/host_places.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Hosts are numbers that belong to nobody (RFC 5737), so that nobody is asked for names, nor for
// routes: ranks dial a given address.
class LaunchPlanTest : public ::testing::Test {
 protected:
  LaunchPlanTest() {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"}) {
      ::unsetenv(name);
    }
    flags_.worker_listen = "127.0.0.1:7";
  }
  ~LaunchPlanTest() override {
    for (const char* name : {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"}) {
      ::unsetenv(name);
    }
  }
  std::string ErrorOf(int tp, int pp, int num_replicas = 1) const {
    return std::string(
        PlanLaunch(flags_, *ProcessGrid::Create(tp, pp), num_replicas).status().message());
  }
  LaunchFlags flags_;
};

TEST_F(LaunchPlanTest, WithoutHostsEverythingRunsHere) {
  flags_.worker_listen = "";
  const auto plan = PlanLaunch(flags_, *ProcessGrid::Create(2, 2), 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kind, LaunchPlan::Kind::kThisHost);
  EXPECT_EQ(plan->worker_listen, "");
  EXPECT_EQ(plan->host_of_rank.size(), 8u);
  EXPECT_EQ(plan->num_hosts(), 1);
  EXPECT_EQ(plan->max_ranks_per_host(), 8);
  EXPECT_TRUE(plan->uses_this_host);
}

TEST_F(LaunchPlanTest, HostsFillInOrderAndReplicasFollowEachOther) {
  flags_.hosts = "203.0.113.1:2,203.0.113.2:6";
  const auto plan = PlanLaunch(flags_, *ProcessGrid::Create(2, 2), 2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->kind, LaunchPlan::Kind::kHosts);
  EXPECT_THAT(plan->HostsOf(0),
              ElementsAre("203.0.113.1", "203.0.113.1", "203.0.113.2", "203.0.113.2"));
  EXPECT_THAT(plan->HostsOf(1),
              ElementsAre("203.0.113.2", "203.0.113.2", "203.0.113.2", "203.0.113.2"));
  EXPECT_EQ(plan->max_ranks_per_host(), 6);
  EXPECT_EQ(FormatHostPlaces(plan->PlacesOf(0)), "0/2,1/2,0/6,1/6");
  EXPECT_EQ(FormatHostPlaces(plan->PlacesOf(1)), "2/6,3/6,4/6,5/6");
  EXPECT_EQ(plan->worker_listen, "127.0.0.1:7");
  EXPECT_FALSE(plan->uses_this_host);
}

TEST_F(LaunchPlanTest, ThisHostIsOneWhateverItIsCalled) {
  flags_.hosts = absl::StrCat("127.0.0.1:1,", SystemHostName(), ":1,localhost:2");
  flags_.worker_listen = "";
  const auto plan = PlanLaunch(flags_, *ProcessGrid::Create(4, 1), 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->HostsOf(0), Each(SystemHostName()));  // as mpirun calls it
  EXPECT_EQ(plan->num_hosts(), 1);
  EXPECT_EQ(FormatHostPlaces(plan->PlacesOf(0)), "0/4,1/4,2/4,3/4");
  EXPECT_TRUE(plan->uses_this_host);
  EXPECT_EQ(plan->worker_listen, "");  // nobody elsewhere dials

  flags_.hosts = "203.0.113.1:1,127.0.0.1:2,203.0.113.2:1";
  flags_.worker_listen = "127.0.0.1:7";
  const auto among_others = PlanLaunch(flags_, *ProcessGrid::Create(1, 4), 1);
  ASSERT_TRUE(among_others.ok()) << among_others.status();
  EXPECT_THAT(among_others->HostsOf(0),
              ElementsAre("203.0.113.1", SystemHostName(), SystemHostName(), "203.0.113.2"));
  EXPECT_TRUE(among_others->uses_this_host);
}

TEST_F(LaunchPlanTest, ASplitGroupIsRefusedUnlessAllowed) {
  flags_.hosts = "203.0.113.1:1,203.0.113.2:3";
  EXPECT_THAT(ErrorOf(2, 2), HasSubstr("rank 0 on 203.0.113.1, rank 1 on 203.0.113.2"));
  EXPECT_EQ(ErrorOf(1, 4), "");
  flags_.allow_tp_across_nodes = true;
  EXPECT_EQ(ErrorOf(2, 2), "");
  flags_.allow_tp_across_nodes = false;
  flags_.hosts = "203.0.113.1:6,203.0.113.2:2";
  EXPECT_EQ(ErrorOf(2, 2, 2), "");  // the second replica's first stage is whole
  flags_.hosts = "203.0.113.1:5,203.0.113.2:3";
  EXPECT_THAT(ErrorOf(2, 2, 2), HasSubstr("rank 0 on 203.0.113.1, rank 1 on 203.0.113.2"));
}

TEST_F(LaunchPlanTest, WhatCannotBeIsToldInOneLine) {
  flags_.hosts = "203.0.113.1:2";
  EXPECT_THAT(ErrorOf(4, 1), HasSubstr("4 ranks need as many slots"));
  EXPECT_THAT(ErrorOf(2, 1, 2), HasSubstr("4 ranks need as many slots"));
  flags_.launcher = "srun";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("leave out --hosts"));
  flags_ = LaunchFlags();
  flags_.launcher = "srun";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("needs a Slurm allocation"));
  flags_ = LaunchFlags();
  flags_.rsh_agent = "/bin/agent";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("--rsh-agent needs --hosts"));
  flags_ = LaunchFlags();
  flags_.network = "10.0.0.0/99";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("10.0.0.0/99"));
  flags_ = LaunchFlags();
  flags_.worker_listen = "0.0.0.0:7";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("name one of"));
  flags_ = LaunchFlags();
  flags_.hostfile = "/nonexistent/hosts";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("/nonexistent/hosts"));
}

TEST_F(LaunchPlanTest, AnAllocationIsUsed) {
  ::setenv("SLURM_JOB_ID", "17", 1);
  ::setenv("SLURM_JOB_NODELIST", "127.0.0.[1-2]", 1);
  ::setenv("SLURM_TASKS_PER_NODE", "2(x2)", 1);
  EXPECT_THAT(ErrorOf(8, 1), HasSubstr("ask Slurm for --ntasks=8"));
  EXPECT_THAT(ErrorOf(4, 1), HasSubstr("is split between hosts"));
  flags_.launcher = "mpirun";
  EXPECT_EQ(ErrorOf(8, 1), "");
}

TEST_F(LaunchPlanTest, EachReplicaHasPortsOfItsOwn) {
  flags_.mpi_ports = "20000-20071";
  const auto plan = PlanLaunch(flags_, *ProcessGrid::Create(2, 1), 3);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->PortsOf(0)->first, 20000);
  EXPECT_EQ(plan->PortsOf(0)->last, 20023);
  EXPECT_EQ(plan->PortsOf(2)->first, 20048);
  EXPECT_EQ(plan->PortsOf(2)->last, 20071);
  EXPECT_THAT(ErrorOf(2, 1, 4),
              HasSubstr("has 72 ports, 4 replicas with 2 ranks on a host need 96"));
  flags_.mpi_ports = "20000";
  EXPECT_THAT(ErrorOf(2, 1), HasSubstr("FIRST-LAST"));
}

}  // namespace
}  // namespace lockstep
