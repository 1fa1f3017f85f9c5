// A host with a driver and a program that was installed without its GPU plugin.
#include <dlfcn.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The program alone in a directory, and a library that goes by the driver's name: that it can be
// opened is all that is asked.
class MissingPluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_ASSET(model_)
    Dl_info c_library;
    ASSERT_NE(::dladdr(reinterpret_cast<const void*>(&std::fopen), &c_library), 0);
    fs::create_symlink(c_library.dli_fname, scratch_ / "libcuda.so.1");
    std::error_code other_disk;
    fs::create_hard_link(LockstepBinary(), scratch_ / "lockstep", other_disk);
    if (other_disk) fs::copy_file(LockstepBinary(), scratch_ / "lockstep");
  }

  std::unique_ptr<Process> Serve(const std::string& device) const {
    return std::make_unique<Process>(
        std::vector<std::string>{(scratch_ / "lockstep").string(), "serve", model_.string(),
                                 "--listen", "127.0.0.1:0", "--json", "--num-kv-blocks", "64",
                                 "--device", device},
        std::map<std::string, std::string>{{"LD_LIBRARY_PATH", scratch_.path().string()}});
  }

  const TempDirectory scratch_;
  const fs::path model_ = SharedAssets() / "models" / "stories260K";
};

TEST_F(MissingPluginTest, WhoServesOnCpusInsteadIsTold) {
  const auto server = Serve("auto");
  EXPECT_TRUE(server->WaitForOutput(
      [](const std::string& out) { return absl::StrContains(out, R"("event":"ready")"); },
      kPatience))
      << server->err();
  // A rank's words come through mpirun, which may be later.
  const std::string told =
      "GPUs are left alone: there is an NVIDIA driver, but no liblockstep_cuda.so";
  EXPECT_TRUE(server->WaitForOutput(
      [&](const std::string& out) { return absl::StrContains(out, told); }, kPatience))
      << server->out() << server->err();
}

TEST_F(MissingPluginTest, WhoInsistsOnGpusIsRefused) {
  const auto server = Serve("cuda");
  EXPECT_EQ(server->Wait(kPatience), 1);
  EXPECT_THAT(server->err(), HasSubstr("no liblockstep_cuda.so beside"));
}

}  // namespace
}  // namespace lockstep::testing
