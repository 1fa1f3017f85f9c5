#include "launcher/cli/serving_flags.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

// What follows `name`, or "absent".
std::string ValueOf(const std::vector<std::string>& arguments, const std::string& name) {
  const auto found = std::find(arguments.begin(), arguments.end(), name);
  return found == arguments.end() || found + 1 == arguments.end() ? "absent" : *(found + 1);
}

TEST(WorkerArgumentsTest, RanksHearWhatTheirLauncherWasTold) {
  ModelFlags model;
  model.model = "/models/llama";
  model.tp = 8;
  RankFlags rank;
  rank.gpu_memory_utilization = 0.85;
  rank.kv_cache_dtype = "fp8";
  WorkerLaunch launch;
  launch.controller_address = "10.0.0.1:50052";
  launch.preflight_seconds = 630;
  launch.kv_offload_gib = 12.5;
  const std::vector<std::string> arguments = WorkerArguments(model, rank, launch);
  EXPECT_EQ(arguments.front(), "worker");
  EXPECT_EQ(ValueOf(arguments, "--controller"), "10.0.0.1:50052");
  EXPECT_EQ(ValueOf(arguments, "--tp"), "8");
  EXPECT_EQ(ValueOf(arguments, "--gpu-memory-utilization"), "0.85");
  EXPECT_EQ(ValueOf(arguments, "--kv-cache-dtype"), "fp8");
  EXPECT_EQ(ValueOf(arguments, "--preflight-seconds"), "630");
  EXPECT_EQ(ValueOf(arguments, "--kv-offload-gib"), "12.5");
  for (const char* unsaid : {"--threads-per-rank", "--num-kv-blocks", "--max-model-len",
                             "--share-cores", "--weight-cache", "--network", "--host-places"}) {
    EXPECT_EQ(std::count(arguments.begin(), arguments.end(), unsaid), 0) << unsaid;
  }
}

TEST(ThreadsPerRankTest, CoresAreDividedUnlessThreadsAreSaid) {
  RankFlags flags;
  EXPECT_EQ(ThreadsPerRank(flags, /*num_ranks=*/3, /*num_cores=*/8), 2);
  EXPECT_EQ(ThreadsPerRank(flags, 9, 8), 1);
  flags.threads = 5;
  EXPECT_EQ(ThreadsPerRank(flags, 3, 8), 5);
}

}  // namespace
}  // namespace lockstep
