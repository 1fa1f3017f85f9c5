#include "launcher/job/weight_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(WeightMemory, RanksOpenTheFilesByTheirPaths) {
  const auto memory = WeightMemory::Create(3);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (int rank = 0; rank < 3; ++rank) {
    const auto path = WeightMemory::PathOf(memory->ToString(), rank);
    ASSERT_TRUE(path.ok()) << path.status();
    std::ofstream(*path) << "rank " << rank;
    struct stat info;
    ASSERT_EQ(::stat(path->c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  std::string text;
  std::getline(std::ifstream(*WeightMemory::PathOf(memory->ToString(), 1)), text);
  EXPECT_EQ(text, "rank 1");
}

TEST(WeightMemory, IsGoneWithItsOwner) {
  std::string text;
  { text = WeightMemory::Create(1)->ToString(); }
  EXPECT_FALSE(std::ifstream(*WeightMemory::PathOf(text, 0)).good());
}

TEST(WeightMemory, NonsenseIsNamed) {
  for (const char* text : {"", "7", "x:3", "0:3", "-4:3", "1:2:3", "99999999999:1"}) {
    EXPECT_THAT(std::string(WeightMemory::PathOf(text, 0).status().message()), HasSubstr("PID:FD"))
        << text;
  }
  for (const char* text : {"1:", "1:x", "1:-3", "1:3,"}) {
    const int rank = std::string(text) == "1:3," ? 1 : 0;
    EXPECT_THAT(std::string(WeightMemory::PathOf(text, rank).status().message()),
                HasSubstr("no file for rank"))
        << text;
  }
  EXPECT_FALSE(WeightMemory::PathOf("1:3", 1).ok());
  EXPECT_FALSE(WeightMemory::PathOf("1:3", -1).ok());
}

}  // namespace
}  // namespace lockstep
