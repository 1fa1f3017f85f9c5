// Files of a model directory that are there and cannot be looked at.
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "tests/support/temp_directory.h"
#include "tests/support/unprivileged.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(HiddenFiles, ADirectoryThatMayNotBeEnteredIsNotCalledEmpty) {
  const testing::TempDirectory directory;
  directory.Write("config.json", "{}");
  fs::permissions(directory.path(), fs::perms::none);
  absl::Status status;
  {
    const testing::Unprivileged unprivileged;
    status = Checkpoint::Open(directory.path()).status();
  }
  fs::permissions(directory.path(), fs::perms::owner_all);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("config.json: Permission denied"));
}

TEST(HiddenFiles, LinksThatLeadInCirclesAreNotMissing) {
  const testing::TempDirectory directory;
  const auto error = [&directory] {
    return std::string(Checkpoint::Open(directory.path()).status().message());
  };
  fs::create_symlink("config.json", directory / "config.json");
  EXPECT_THAT(error(), HasSubstr("config.json: Too many levels of symbolic links"));
  directory.Write("config.json", R"({"model_type":"llama","hidden_size":4,"intermediate_size":8,
      "num_hidden_layers":1,"num_attention_heads":2,"vocab_size":6})");
  fs::create_symlink("generation_config.json", directory / "generation_config.json");
  EXPECT_THAT(error(), HasSubstr("generation_config.json: Too many levels of symbolic links"));
}

}  // namespace
}  // namespace lockstep
