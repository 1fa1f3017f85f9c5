// Damaged files end in a Status or in a file whose tensors lie inside it; run under the sanitizers
// this also proves that nothing is read out of bounds.
#include <limits>

#include "gtest/gtest.h"
#include "model/checkpoint/safetensors.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/checkpoint/shard_plan.h"
#include "model/model_config.h"
#include "tests/model/checkpoint/model_directory.h"
#include "tests/model/checkpoint/mutations.h"

namespace lockstep {
namespace {

using testing::Mutate;
using testing::TempDirectory;

std::string SmallFile() {
  const std::vector<TensorSpec> specs = {
      {"a", {2, 3}}, {"b", {4}}, {"empty", {0}}, {"c", {1, 1, 2}}};
  const PlannedFile file = PlanShards(specs, DType::kF32, 1 << 30).front();
  return file.header + std::string(file.file_bytes - static_cast<int64_t>(file.header.size()), 'x');
}

void ExpectInside(const std::vector<TensorInfo>& tensors, int64_t data_begin, int64_t data_bytes) {
  int64_t expected = data_begin;
  for (const TensorInfo& tensor : tensors) {
    EXPECT_EQ(tensor.file_offset, expected);
    EXPECT_GE(tensor.num_bytes, 0);
    expected += tensor.num_bytes;
  }
  EXPECT_EQ(expected, data_begin + data_bytes);
}

TEST(SafetensorsMutation, DamagedHeadersNeverCrash) {
  const std::string file = SmallFile();
  const std::string header = file.substr(8, file.find("xxx") - 8);
  std::mt19937_64 random(1);
  int num_refused = 0;
  constexpr int kRounds = 20'000;
  for (int round = 0; round < kRounds; ++round) {
    const auto tensors = ParseSafetensorsHeader(Mutate(header, random), 1000, 48);
    if (tensors.ok()) {
      ExpectInside(*tensors, 1000, 48);
    } else {
      ++num_refused;
      ASSERT_EQ(tensors.status().message().find('\n'), absl::string_view::npos);
    }
  }
  EXPECT_GT(num_refused, kRounds / 2);
}

TEST(SafetensorsMutation, EveryTruncationIsRefused) {
  const TempDirectory directory;
  const std::string file = SmallFile();
  ASSERT_TRUE(SafetensorsFile::Open(directory.Write("whole", file)).ok());
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(SafetensorsFile::Open(directory.Write("cut", file.substr(0, length))).ok())
        << length;
  }
}

TEST(SafetensorsMutation, DamagedFilesNeverCrash) {
  const TempDirectory directory;
  const std::string file = SmallFile();
  std::mt19937_64 random(2);
  for (int round = 0; round < 2'000; ++round) {
    const std::string damaged = Mutate(file, random);
    const auto opened = SafetensorsFile::Open(directory.Write("damaged", damaged));
    if (!opened.ok()) continue;
    for (const TensorInfo& tensor : (*opened)->tensors()) {
      std::string bytes(tensor.num_bytes, '\0');
      EXPECT_TRUE((*opened)->ReadAt(tensor.file_offset, tensor.num_bytes, bytes.data()).ok());
    }
  }
}

}  // namespace
}  // namespace lockstep
