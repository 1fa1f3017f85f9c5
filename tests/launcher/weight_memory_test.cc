#include "launcher/job/weight_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/check.h"
#include "kernels/base/fd.h"
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

// No more descriptors than there are can be had.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    LS_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const Fd next(::open("/dev/null", O_RDONLY));
    const rlimit now{.rlim_cur = static_cast<rlim_t>(next.get()), .rlim_max = before_.rlim_max};
    LS_CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~NoMoreDescriptors() { LS_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }

 private:
  rlimit before_;
};

TEST_F(WeightMemoryTest, AShortageOfDescriptorsEndsNothing) {
  auto memory = *WeightMemory::Create(1, directory_.path());
  {
    const Fd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    std::strncpy(address.sun_path, memory->socket().c_str(), sizeof(address.sun_path) - 1);
    const NoMoreDescriptors shortage;
    ASSERT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
              0);
    absl::SleepFor(absl::Milliseconds(30));  // it is not accepted
  }
  EXPECT_TRUE(WeightMemory::Receive(memory->socket(), 0).ok());
  const NoMoreDescriptors shortage;
  memory.reset();
}

}  // namespace
}  // namespace lockstep
