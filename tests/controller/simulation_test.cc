// Many seeds of the simulation. LOCKSTEP_SIMULATION_SEEDS sets how many (default 10,000),
// LOCKSTEP_SIMULATION_FIRST_SEED the first: with 1 of them its trace is printed.
#include <cstdio>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/controller/simulation.h"

namespace lockstep::testing {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = otherwise;
  if (text == nullptr) return otherwise;
  EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name << "=" << text;
  return value;
}

void ExpectGood(uint64_t seed) {
  Simulation simulation(seed);
  simulation.Run();
  for (const std::string& failure : simulation.failures()) {
    ADD_FAILURE() << "seed " << seed << ": " << failure;
  }
}

TEST(SimulationTest, EveryAcceptedRequestGetsItsTokensOnce) {
  const uint64_t first = FromEnvironment("LOCKSTEP_SIMULATION_FIRST_SEED", 0);
  const uint64_t count = FromEnvironment("LOCKSTEP_SIMULATION_SEEDS", 10'000);
  SimulationCounts total;
  for (uint64_t seed = first; seed < first + count && !HasFailure(); ++seed) {
    Simulation simulation(seed);
    simulation.Run();
    for (const std::string& failure : simulation.failures()) {
      ADD_FAILURE() << "seed " << seed << ": " << failure;
    }
    total.accepted += simulation.counts().accepted;
    total.finished += simulation.counts().finished;
    total.losses += simulation.counts().losses;
    total.killers += simulation.counts().killers;
    total.blamed += simulation.counts().blamed;
    total.losses_while_others_served += simulation.counts().losses_while_others_served;
    if (count == 1) std::printf("%s", simulation.trace().c_str());
  }
  std::printf(
      "%llu seeds: %d requests, %d lost replicas, %d of them while others served, %d requests that "
      "killed, %d blamed wrongly\n",
      static_cast<unsigned long long>(count), total.accepted, total.losses,
      total.losses_while_others_served, total.killers, total.blamed);
  EXPECT_EQ(total.finished, total.accepted);
  if (count >= 100) {
    EXPECT_GT(total.losses, static_cast<int>(count) / 2);
    EXPECT_GT(total.losses_while_others_served, static_cast<int>(count) / 10);
    EXPECT_GT(total.killers, static_cast<int>(count) / 40);
    EXPECT_LT(total.blamed, total.losses / 100);
  }
}

TEST(SimulationTest, OneSeedIsOneTrace) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Simulation one(seed);
    one.Run();
    Simulation two(seed);
    two.Run();
    ASSERT_EQ(one.trace(), two.trace()) << "seed " << seed;
    EXPECT_GT(one.trace().size(), 1000u);
  }
}

// Seeds that failed once.
TEST(SimulationTest, SeedsThatFailedOnceStayGood) {
  for (const uint64_t seed : {0}) ExpectGood(seed);
}

}  // namespace
}  // namespace lockstep::testing
