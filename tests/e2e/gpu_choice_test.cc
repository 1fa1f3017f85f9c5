// Which GPUs ranks compute on, on a machine with emulated ones: replicas side by side, ranks that a
// launcher has bound, ranks without.
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class GpuChoiceTest : public ::testing::Test {
 protected:
  void SetUp() override{SKIP_WITHOUT_ASSET(model_)}

  // What the emulation takes a while to warm up.
  std::vector<std::string> Small(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--max-num-seqs", "2", "--max-batched-tokens", "16",
                                       "--max-model-len", "64"});
    return arguments;
  }
  // Ranks that see one GPU each, which `number`, a shell's expression, tells.
  std::unique_ptr<Process> StartBoundRanks(const std::string& controller, const std::string& number,
                                           const std::string& num_gpus) const {
    std::vector<std::string> rank = {
        "/bin/sh", "-c",
        absl::StrCat("LOCKSTEP_CUDA_FIRST_DEVICE=", number, " LOCKSTEP_CUDA_DEVICES=\"", num_gpus,
                     " Emulated GPU\" exec \"$0\" \"$@\"")};
    for (const std::string& argument : Small(
             {LockstepBinary(), "worker", model_.string(), "--tp", "2", "--controller", controller,
              "--secret-file", SecretFile(), "--num-kv-blocks", "16", "--device", "auto"})) {
      rank.push_back(argument);
    }
    return StartRanks(2, scratch_.path(), rank);
  }
  std::string SecretFile() const { return (scratch_ / "secret").string(); }

  static std::vector<std::string> Gpus(const json& preflight) {
    std::vector<std::string> gpus;
    for (const json& gpu : preflight["gpus"]) {
      gpus.push_back(
          absl::StrCat(gpu["index"].get<int>(), " ", gpu["pci_bus_id"].get<std::string>()));
    }
    return gpus;
  }

  const TempDirectory scratch_;
  const fs::path model_ = SharedAssets() / "models" / "stories260K";
};

TEST_F(GpuChoiceTest, ReplicasTakeGpusSideBySide) {
  ::setenv("LOCKSTEP_CUDA_DEVICES", "4 Emulated GPU", 1);
  Server server(Small({"serve", model_.string(), "--replicas", "2", "--tp", "2", "--device", "cuda",
                       "--num-kv-blocks", "16"}));
  ::unsetenv("LOCKSTEP_CUDA_DEVICES");
  std::vector<std::string> gpus;
  for (const int replica : {0, 1}) {
    const json preflight = server.WaitEvent("preflight", replica);
    ASSERT_FALSE(preflight.is_null());
    for (const std::string& gpu : Gpus(preflight)) gpus.push_back(gpu);
  }
  EXPECT_THAT(gpus,
              ElementsAre("0 0000:01:00.0", "1 0000:02:00.0", "2 0000:03:00.0", "3 0000:04:00.0"));
}

TEST_F(GpuChoiceTest, RanksKeepTheGpusTheyAreBoundTo) {
  Server controller(Small({"controller", model_.string(), "--tp", "2", "--worker-listen",
                           "127.0.0.1:0", "--secret-file", SecretFile()}));
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  auto ranks = StartBoundRanks(waiting["worker_address"], "$OMPI_COMM_WORLD_RANK", "1");
  EXPECT_THAT(Gpus(controller.WaitEvent("preflight")),
              ElementsAre("0 0000:01:00.0", "0 0000:02:00.0"));
  controller.WaitReady();
  const Finished finished = RunLockstep({"generate", "Once upon a time", "--temperature", "0",
                                         "--max-tokens", "10", "--server", controller.address()});
  EXPECT_THAT(finished.out, ::testing::StartsWith("Once upon a time, there was"));
  controller.process().Signal(SIGINT);
  EXPECT_EQ(controller.process().Wait(kPatience), 0);
  EXPECT_EQ(ranks->Wait(kPatience), 0) << ranks->err();
  EXPECT_THAT(ranks->err(), Not(HasSubstr("share GPU")));
}

// Three ranks of four that a host had GPUs for, and one that is gone.
TEST_F(GpuChoiceTest, WithFewerGpusThanRanksNoneIsSharedInSilence) {
  ::setenv("LOCKSTEP_CUDA_DEVICES", "3 Emulated GPU", 1);
  for (const char* device : {"auto", "cuda"}) {
    const Finished refused = RunLockstep(Small(
        {"serve", model_.string(), "--tp", "4", "--device", device, "--listen", "127.0.0.1:0"}));
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err, HasSubstr("ranks 0, 3 on "));
    EXPECT_THAT(refused.err, HasSubstr("3 GPUs that are seen there (0000:01:00.0, 0000:02:00.0"));
    EXPECT_THAT(refused.err, HasSubstr("--share-gpus"));
  }
  ::unsetenv("LOCKSTEP_CUDA_DEVICES");
}

TEST_F(GpuChoiceTest, RanksBoundToOneGpuDoNotShareItInSilence) {
  Process make({"/bin/sh", "-c", absl::StrCat("umask 077; echo secret > ", SecretFile())});
  ASSERT_EQ(make.Wait(kPatience), 0);
  auto ranks = StartBoundRanks("127.0.0.1:1", "0", "1");
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("ranks 0-1 on "));
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("would share the GPU 0000:01:00.0"));
}

TEST_F(GpuChoiceTest, AllOrNoRanksHaveGpus) {
  Process make({"/bin/sh", "-c", absl::StrCat("umask 077; echo secret > ", SecretFile())});
  ASSERT_EQ(make.Wait(kPatience), 0);
  auto ranks = StartBoundRanks("127.0.0.1:1", "0", "$OMPI_COMM_WORLD_RANK");
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("has a GPU, rank 0 on"));
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("has none (no GPU can be used here: "));
}

}  // namespace
}  // namespace lockstep::testing
