#include "launcher/job/runtime_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/shared_region_name.h"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

mode_t ModeOf(const fs::path& path) {
  struct stat info = {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

class RuntimeDirTest : public ::testing::Test {
 protected:
  RuntimeDirTest() { ::setenv("XDG_RUNTIME_DIR", parent_.c_str(), 1); }
  ~RuntimeDirTest() override { ::unsetenv("XDG_RUNTIME_DIR"); }
  const testing::TempDirectory directory_;
  const fs::path& parent_ = directory_.path();
};

TEST_F(RuntimeDirTest, IsPrivateAndGoesWithItsOwner) {
  fs::path path;
  {
    const auto dir = RuntimeDir::Create();
    ASSERT_TRUE(dir.ok()) << dir.status();
    path = dir->path();
    EXPECT_EQ(path.parent_path(), parent_);
    EXPECT_EQ(ModeOf(path), 0700u);
    const fs::path file = path / "secret";
    ASSERT_TRUE(WriteNewSecretFile(file, "s3cret").ok());
    EXPECT_EQ(ModeOf(file), 0600u);
    EXPECT_EQ(*ReadSecretFile(file), "s3cret");
  }
  EXPECT_FALSE(fs::exists(path));
}

// gRPC takes addresses with paths in them for URIs.
TEST_F(RuntimeDirTest, LeavesOutDirectoriesWhoseNamesMeanSomethingInAnAddress) {
  for (const char* name : {"a,b", "a%20b", "a?b", "a#b"}) {
    const fs::path odd = parent_ / name;
    fs::create_directory(odd);
    ::setenv("XDG_RUNTIME_DIR", odd.c_str(), 1);
    EXPECT_NE(RuntimeDir::Create()->path().parent_path(), odd);
  }
  const fs::path spaced = parent_ / "a b";
  fs::create_directory(spaced);
  ::setenv("XDG_RUNTIME_DIR", spaced.c_str(), 1);
  EXPECT_EQ(RuntimeDir::Create()->path().parent_path(), spaced);
}

TEST_F(RuntimeDirTest, TellsWhereThereIsNoRoom) {
  const auto dir = RuntimeDir::Create();
  EXPECT_TRUE(dir->CheckRoom(1).ok());
  const absl::Status full = dir->CheckRoom(int64_t{1} << 62);
  EXPECT_TRUE(absl::IsUnavailable(full));
  EXPECT_THAT(std::string(full.message()),
              ::testing::AllOf(::testing::HasSubstr(parent_.string() + " has "),
                               ::testing::HasSubstr("exchange through ")));
}

TEST_F(RuntimeDirTest, RemovesWhatADeadLaunchLeftAndNothingElse) {
  const fs::path dead = parent_ / "lockstep-serve-dead";
  const fs::path unmarked = parent_ / "lockstep-serve-unmarked";
  const fs::path old = parent_ / "lockstep-serve-old";
  fs::create_directory(dead);
  fs::create_directory(unmarked);
  fs::create_directory(old);
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  std::ofstream(dead / "lock").put('\n');
  const auto living = RuntimeDir::Create();
  ASSERT_TRUE(living.ok());
  const auto other = RuntimeDir::Create();
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(unmarked));
  EXPECT_TRUE(fs::exists(living->path()));
}

TEST_F(RuntimeDirTest, ThoseThatAreMadeAtTheSameTimeLeaveEachOtherAlone) {
  std::atomic<int> num_lost = 0;
  std::vector<std::thread> makers;
  for (int maker = 0; maker < 4; ++maker) {
    makers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto dir = RuntimeDir::Create();
        if (!dir.ok() || !fs::exists(dir->path() / "lock")) ++num_lost;
      }
    });
  }
  for (std::thread& maker : makers) maker.join();
  EXPECT_EQ(num_lost, 0);
  EXPECT_TRUE(fs::is_empty(parent_));
}

TEST_F(RuntimeDirTest, OneWhoseMakerDiedGoesAfterAMinute) {
  const fs::path young = parent_ / "lockstep-new-young";
  const fs::path old = parent_ / "lockstep-new-old";
  for (const fs::path& path : {young, old}) {
    fs::create_directory(path);
    std::ofstream(path / "lock").put('\n');
  }
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  ASSERT_TRUE(RuntimeDir::Create().ok());
  EXPECT_TRUE(fs::exists(young));
  EXPECT_FALSE(fs::exists(old));
}

TEST_F(RuntimeDirTest, MemoryOfRanksThatWereKilledWhileTheyStartedGoesAfterAMinute) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "/dev/shm may not be written";
  const std::string pid = std::to_string(::getpid());
  const std::string ranks = "/dev/shm/" + (kSharedRegionPrefix + pid);
  const fs::path old = ranks + "-old", fresh = ranks + "-fresh",
                 others = "/dev/shm/lockstep-others-" + pid;
  for (const fs::path& file : {old, fresh, others}) std::ofstream(file) << "x";
  for (const fs::path& file : {old, others}) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::minutes(2));
  }
  ASSERT_TRUE(RuntimeDir::CreateInMemory().ok());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_TRUE(fs::exists(others));
  for (const fs::path& file : {old, fresh, others}) fs::remove(file);
}

TEST_F(RuntimeDirTest, SecretsDiffer) { EXPECT_NE(*DrawSecret(), *DrawSecret()); }

TEST_F(RuntimeDirTest, RefusesASecretThatOthersCanRead) {
  const fs::path path = parent_ / "secret";
  ASSERT_TRUE(WriteNewSecretFile(path, "x").ok());
  EXPECT_FALSE(WriteNewSecretFile(path, "y").ok());
  fs::permissions(path, fs::perms::group_read, fs::perm_options::add);
  EXPECT_THAT(std::string(ReadSecretFile(path).status().message()), HasSubstr("chmod 600"));
}

TEST_F(RuntimeDirTest, RefusesAnEmptySecret) {
  const fs::path path = parent_ / "secret";
  ASSERT_TRUE(WriteNewSecretFile(path, "").ok());
  EXPECT_FALSE(ReadSecretFile(path).ok());
  EXPECT_FALSE(ReadSecretFile(parent_ / "absent").ok());
}

}  // namespace
}  // namespace lockstep
