#include "launcher/job/weight_memory.h"

#include <sys/stat.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/job/runtime_dir.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class WeightMemoryTest : public ::testing::Test {
 protected:
  const RuntimeDir directory_ = *RuntimeDir::Create();
};

TEST_F(WeightMemoryTest, RanksOfEveryEpochShareAFile) {
  const auto memory = *WeightMemory::Create(3, directory_.path());
  for (int rank = 0; rank < 3; ++rank) {
    const auto file = WeightMemory::Receive(memory->socket(), rank);
    ASSERT_TRUE(file.ok()) << file.status();
    std::ofstream(WeightMemory::PathOf(*file)) << "rank " << rank;
    struct stat info;
    ASSERT_EQ(::fstat(file->get(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  const auto again = WeightMemory::Receive(memory->socket(), 1);
  ASSERT_TRUE(again.ok()) << again.status();
  std::string text;
  std::ifstream in(WeightMemory::PathOf(*again));
  std::getline(in, text);
  EXPECT_EQ(text, "rank 1");
}

TEST_F(WeightMemoryTest, RanksThatDoNotExistGetNothing) {
  const auto memory = *WeightMemory::Create(2, directory_.path());
  for (const int rank : {-1, 2, 1 << 30}) {
    const auto file = WeightMemory::Receive(memory->socket(), rank);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("no memory for rank"));
  }
  EXPECT_TRUE(WeightMemory::Receive(memory->socket(), 1).ok());
}

TEST_F(WeightMemoryTest, IsGoneWithItsOwner) {
  std::filesystem::path socket;
  { socket = (*WeightMemory::Create(1, directory_.path()))->socket(); }
  EXPECT_FALSE(std::filesystem::exists(socket));
  const auto file = WeightMemory::Receive(socket, 0);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("cannot reach"));
  EXPECT_FALSE(WeightMemory::Receive(std::string(200, 'x'), 0).ok());
}

}  // namespace
}  // namespace lockstep
