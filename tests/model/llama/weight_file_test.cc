// Packed weights kept in a file: who may use it, and when it is packed anew.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors.h"
#include "model/llama/weight_file.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kSmall = 100;
constexpr int64_t kLarge = (int64_t{5} << 20) + 12;

class WeightFileTest : public ::testing::Test {
 protected:
  WeightFileTest() : path_(directory_ / "some.weights") {}

  std::unique_ptr<WeightFile> Open(const std::string& key = "key") const {
    auto file = WeightFile::Open(path_, key);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  // Fills two regions with c, and finishes them or not.
  void Fill(char c, bool finish = true, const std::string& key = "key") const {
    const auto file = Open(key);
    ASSERT_FALSE(file->is_complete());
    const DeviceBuffer small = *file->Take(kSmall);
    const DeviceBuffer large = *file->Take(kLarge);
    file->MakeHugePages(2);
    std::memset(small.data(), c, kSmall);
    std::memset(large.data(), c, kLarge);
    if (!finish) return;
    ASSERT_TRUE(file->Finish(2).ok());
  }
  bool IsFilledWith(char c, const std::string& key = "key") const {
    const auto file = Open(key);
    if (!file->is_complete()) return false;
    const DeviceBuffer small = *file->Take(kSmall);
    const DeviceBuffer large = *file->Take(kLarge);
    int64_t furthest = 0;
    const absl::Status populated = file->Populate(1, [&](int64_t done, int64_t total) {
      EXPECT_EQ(total, kSmall + kLarge);
      furthest = std::max(furthest, done);
    });
    EXPECT_TRUE(populated.ok()) << populated;
    EXPECT_EQ(furthest, kSmall + kLarge);
    return small.as<char>()[0] == c && large.as<char>()[0] == c &&
           large.as<char>()[kLarge - 1] == c;
  }
  void Overwrite(std::streamoff at, const std::string& bytes) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at) << bytes;
    ASSERT_TRUE(file.good());
  }

  const TempDirectory directory_;
  fs::path path_;
};

TEST_F(WeightFileTest, LaterStartsFindWhatWasFinished) {
  EXPECT_FALSE(WeightFile::IsComplete(path_, "key"));
  Fill('a');
  EXPECT_TRUE(WeightFile::IsComplete(path_, "key"));
  EXPECT_FALSE(WeightFile::IsComplete(path_, "other"));
  EXPECT_TRUE(IsFilledWith('a'));
  EXPECT_TRUE(IsFilledWith('a'));
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(WeightFileTest, RegionsAreZeroedAndAlignedUntilFilled) {
  Fill('a', /*finish=*/false);
  const auto file = Open();
  ASSERT_FALSE(file->is_complete());
  for (const int64_t bytes : {kSmall, kLarge, kSmall}) {
    const DeviceBuffer region = *file->Take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(region.data()) % 64, 0u);
    EXPECT_TRUE(
        std::all_of(region.as<char>(), region.as<char>() + bytes, [](char c) { return c == 0; }));
  }
}

TEST_F(WeightFileTest, WhatIsDiscardedTakesNoRoom) {
  {
    const auto file = Open();
    ASSERT_TRUE(file->Take(kLarge).ok());
    file->Discard();
    EXPECT_EQ(fs::file_size(path_), 0u);
  }
  Fill('a');
  Open()->Discard();  // not what is complete
  EXPECT_TRUE(IsFilledWith('a'));
}

TEST_F(WeightFileTest, RegionsOutliveTheObject) {
  DeviceBuffer region;
  {
    const auto file = Open();
    region = *file->Take(kLarge);
    std::memset(region.data(), 'x', kLarge);
    ASSERT_TRUE(file->Finish(2).ok());
  }
  EXPECT_EQ(region.as<char>()[kLarge - 1], 'x');
}

bool LiesInMemory(const fs::path& directory) {
  constexpr decltype(statfs::f_type) kTmpfsMagic = 0x01021994;
  struct statfs info;
  return ::statfs(directory.c_str(), &info) == 0 && info.f_type == kTmpfsMagic;
}

// In either region, the room between them not counted; once in a boot.
TEST_F(WeightFileTest, WhatADiskGivesBackIsComparedWithWhatWasWritten) {
  if (LiesInMemory(directory_.path())) GTEST_SKIP() << "temporary files lie in memory here";
  constexpr std::streamoff kFirst = 2 << 20, kSecond = 4 << 20;  // as regions are aligned
  const auto populate = [this] {
    std::string begin(4096, '\0');
    std::ifstream(path_, std::ios::binary).read(begin.data(), 4096);
    const std::string field = R"("boot_id":")";
    Overwrite(static_cast<std::streamoff>(begin.find(field) + field.size()), "another");
    const auto file = Open();
    EXPECT_TRUE(file->is_complete());
    const DeviceBuffer small = *file->Take(kSmall);
    const DeviceBuffer large = *file->Take(kLarge);
    return file->Populate(2, nullptr);
  };
  Fill('a');
  Overwrite(kFirst + kSmall, "b");
  EXPECT_TRUE(populate().ok());
  for (const std::streamoff at : {kFirst, kFirst + kSmall - 1, kSecond, kSecond + kLarge - 1}) {
    Overwrite(at, "b");
    const absl::Status damaged = populate();
    EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(std::string(damaged.message()), HasSubstr(path_.string() + " is damaged"));
    Overwrite(at, "a");
    EXPECT_TRUE(populate().ok());
  }
  Overwrite(kFirst, "b");
  EXPECT_FALSE(IsFilledWith('a')) << "taken as it was when it was compared";
  const auto file = Open();
  file->Remove();
  EXPECT_FALSE(fs::exists(path_));
  Fill('b');
  file->Remove();  // another file of that name
  EXPECT_TRUE(IsFilledWith('b'));
}

TEST_F(WeightFileTest, WhatCannotBeTrustedIsPackedAnew) {
  Fill('a', /*finish=*/false);
  EXPECT_FALSE(IsFilledWith('a'));  // never finished
  Fill('b');
  EXPECT_FALSE(IsFilledWith('b', "other"));  // of other weights, and emptied for them
  EXPECT_FALSE(IsFilledWith('b'));
  Fill('c');
  fs::resize_file(path_, fs::file_size(path_) - 8192);
  EXPECT_FALSE(IsFilledWith('c'));
  Fill('d');
  EXPECT_TRUE(IsFilledWith('d'));
}

TEST_F(WeightFileTest, OtherProgramsFilesAreLeftAlone) {
  for (const char* text : {"x", "a file that somebody needs"}) {
    std::ofstream(path_, std::ios::trunc) << text;
    const auto file = WeightFile::Open(path_, "key");
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("no file of packed weights"));
    std::string still;
    std::ifstream in(path_);
    std::getline(in, still);
    EXPECT_EQ(still, text);
  }
}

// Pages that were not on the disk when the machine went down came back as holes.
TEST_F(WeightFileTest, AnotherBootsFileCountsOnlyIfItWasSynced) {
  Fill('a');
  std::string begin(4096, '\0');
  std::ifstream(path_, std::ios::binary).read(begin.data(), 4096);
  const auto place_after = [&](const std::string& text) {
    return static_cast<std::streamoff>(begin.find(text) + text.size());
  };
  Overwrite(place_after(R"("boot_id":")"), "another boot");
  Overwrite(place_after(R"("synced":")"), "0");
  EXPECT_FALSE(WeightFile::IsComplete(path_, "key"));
  Overwrite(place_after(R"("synced":")"), "1");
  EXPECT_TRUE(IsFilledWith('a'));
}

TEST_F(WeightFileTest, IsASafetensorsFile) {
  Fill('a');
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorInfo& large = (*file)->tensors().back();
  EXPECT_EQ(large.name, "region.00001");
  EXPECT_EQ(large.shape, std::vector<int64_t>{kLarge});
  char last = 0;
  ASSERT_TRUE((*file)->ReadAt(large.file_offset + kLarge - 1, 1, &last).ok());
  EXPECT_EQ(last, 'a');
}

TEST_F(WeightFileTest, HeadersThatContradictThemselvesAreNotUsed) {
  for (const char* text : {"[]", "{", R"({"region.00000":{"data_offsets":[0,-1]}})",
                           R"({"region.00000":{"data_offsets":[0,9e99]}})", "{\"\xff\":1}"}) {
    Fill('a');
    std::string header(4096, ' ');
    std::ifstream(path_, std::ios::binary).read(header.data(), 4096);
    const std::string tensors = R"("region.00000.before")";
    Overwrite(static_cast<std::streamoff>(header.find(tensors)), text);
    EXPECT_FALSE(WeightFile::IsComplete(path_, "key")) << text;
    fs::remove(path_);
  }
}

TEST_F(WeightFileTest, ACompleteFileEndsWhereItsRegionsDo) {
  Fill('a');
  const auto file = Open();
  const auto beyond = file->Take(kLarge * 3);
  EXPECT_EQ(beyond.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(file->Take(0).ok());
  EXPECT_FALSE(file->Take(-1).ok());
  EXPECT_FALSE(file->Take(INT64_MAX).ok());
}

TEST_F(WeightFileTest, OneFillsAndTheOthersWait) {
  std::atomic<int> num_fillers{0};
  std::vector<std::thread> ranks;
  for (int i = 0; i < 6; ++i) {
    ranks.emplace_back([&] {
      const auto file = Open();
      const DeviceBuffer region = *file->Take(kLarge);
      if (!file->is_complete()) {
        ++num_fillers;
        std::memset(region.data(), 'q', kLarge);
        EXPECT_TRUE(file->Finish(2).ok());
      }
      EXPECT_EQ(region.as<char>()[kLarge - 1], 'q');
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(num_fillers, 1);
}

// Tells of a filler only while that comes further: one that hangs looks like one that waits.
TEST_F(WeightFileTest, WhoWaitsSeesTheFillersProgress) {
  using std::chrono::milliseconds;
  auto filler = Open();
  const DeviceBuffer region = *filler->Take(kLarge);
  std::atomic<int> num_told{0};
  std::thread waiting([&] {
    const auto file = WeightFile::Open(path_, "key", [&] { ++num_told; });
    EXPECT_TRUE(file.ok() && (*file)->is_complete());
  });
  while (num_told == 0) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(num_told, 1);
  filler->ShowProgress();
  while (num_told == 1) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(filler->Finish(2).ok());
  waiting.join();
}

TEST_F(WeightFileTest, WeightsInUseAreNotReplaced) {
  Fill('a');
  const auto file = Open();
  const DeviceBuffer region = *file->Take(kSmall);
  const auto other = WeightFile::Open(path_, "other");
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("in use"));
  EXPECT_EQ(region.as<char>()[kSmall - 1], 'a');
}

TEST_F(WeightFileTest, FilesThatOthersMayWriteAreRefused) {
  Fill('a');
  ASSERT_EQ(::chmod(path_.c_str(), 0622), 0);
  const auto file = WeightFile::Open(path_, "key");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(WeightFile::Open(directory_.path(), "key").ok());
  EXPECT_FALSE(WeightFile::Open(directory_ / "missing/file", "key").ok());
  EXPECT_FALSE(WeightFile::Open(path_, std::string(4 << 20, 'k')).ok());
}

TEST_F(WeightFileTest, AFullFileSystemIsSaid) {
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {16 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    const auto file = Open();
    EXPECT_TRUE(file->Take(kLarge).ok());
    EXPECT_FALSE(file->Take(int64_t{64} << 20).ok());
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

}  // namespace
}  // namespace lockstep::testing
