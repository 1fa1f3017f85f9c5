#include "runtime/controller/killer_prompts.h"

#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

const absl::Time kFirstKill = absl::FromUnixSeconds(1000);

TEST(KillerPromptsTest, AreTheNewestAndRefusedFromTheSecondTime) {
  KillerPrompts killers;
  const std::vector<int32_t> first = {1, 2, 3};
  const std::vector<int32_t> longer = {1, 2, 3, 4};
  EXPECT_FALSE(killers.Find(first));
  killers.Add(first, kFirstKill);
  EXPECT_TRUE(killers.Find(first));
  EXPECT_FALSE(killers.Find(longer));
  EXPECT_TRUE(killers.Check(first, kFirstKill).ok());
  killers.Add(first, kFirstKill);
  EXPECT_FALSE(killers.Check(first, kFirstKill).ok());
  EXPECT_FALSE(killers.Check(first, kFirstKill + KillerPrompts::kRefusal - absl::Seconds(1)).ok());
  EXPECT_TRUE(killers.Check(first, kFirstKill + KillerPrompts::kRefusal).ok());
  for (int i = 1; i < static_cast<int>(KillerPrompts::kMost); ++i) {
    killers.Add(std::vector<int32_t>{9, i}, kFirstKill);
  }
  EXPECT_TRUE(killers.Find(first));
  killers.Add(longer, kFirstKill);
  EXPECT_FALSE(killers.Find(first));
}

TEST(KillerPromptsTest, WhatCameToItsEndIsForgiven) {
  KillerPrompts killers;
  const std::vector<int32_t> first = {1, 2, 3};
  const std::vector<int32_t> second = {4};
  for (int i = 0; i < 2; ++i) {
    killers.Add(first, kFirstKill);
    killers.Add(second, kFirstKill);
  }
  killers.Forgive(killers.Find(first).value());
  EXPECT_FALSE(killers.Find(first));
  EXPECT_TRUE(killers.Check(first, kFirstKill).ok());
  EXPECT_FALSE(killers.Check(second, kFirstKill).ok());
}

}  // namespace
}  // namespace lockstep
