// A controller killed under ranks that were placed by hand: they find the next one, with the
// weights they have. LOCKSTEP_TEST_DEVICE=cuda: on GPUs, or what LOCKSTEP_CUDA_PLUGIN emulates.
#include <signal.h>

#include <cstdlib>
#include <set>

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
using ::testing::HasSubstr;

// Of both sides: steps that an emulated GPU makes in little time.
std::vector<std::string> LimitFlags() {
  if (std::getenv("LOCKSTEP_TEST_DEVICE") == nullptr) return {};
  return {"--max-batched-tokens", "64"};
}
std::vector<std::string> DeviceFlags() {
  const char* device = std::getenv("LOCKSTEP_TEST_DEVICE");
  if (device == nullptr) return {"--device", "cpu"};
  return {"--device", device, "--share-gpus"};
}

class ControllerRestartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_ASSET(model_);
    fs::copy(model_, RanksModel());
  }

  fs::path RanksModel() const { return scratch_ / "model"; }
  std::string SecretFile() const { return (scratch_ / "secret").string(); }

  std::unique_ptr<Server> StartController(const std::string& worker_address,
                                          const std::vector<std::string>& more = {},
                                          const std::string& listen = "127.0.0.1:0") const {
    std::vector<std::string> command = {
        "controller",      model_.string(), "--tp",          "2",         "--pp", "2",
        "--worker-listen", worker_address,  "--secret-file", SecretFile()};
    for (const auto& flags : {LimitFlags(), more}) {
      command.insert(command.end(), flags.begin(), flags.end());
    }
    return std::make_unique<Server>(command, listen);
  }
  std::unique_ptr<Process> StartRanks(const std::string& controller,
                                      const std::vector<std::string>& more = {}) const {
    std::vector<std::string> worker = {LockstepBinary(),
                                       "worker",
                                       RanksModel().string(),
                                       "--tp",
                                       "2",
                                       "--pp",
                                       "2",
                                       "--controller",
                                       controller,
                                       "--secret-file",
                                       SecretFile(),
                                       "--num-kv-blocks",
                                       "64",
                                       "--threads-per-rank",
                                       "1"};
    for (const auto& flags : {DeviceFlags(), LimitFlags(), more}) {
      worker.insert(worker.end(), flags.begin(), flags.end());
    }
    return testing::StartRanks(4, scratch_.path(), worker);
  }
  // Who reads the ranks' weights from now on fails.
  void TruncateRanksWeights() const { fs::resize_file(RanksModel() / "model.safetensors", 8); }

  static std::string Generate(const Server& controller) {
    const Finished finished =
        RunLockstep({"generate", "Once upon a time", "--temperature", "0", "--max-tokens", "100",
                     "--server", controller.address()});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  }
  static std::set<pid_t> Pids(Server& controller) {
    std::set<pid_t> pids;
    const json status = controller.Status();
    for (const json& rank : status["status"]["ranks"]) {
      pids.insert(rank["pid"].get<pid_t>());
    }
    return pids;
  }

  const fs::path model_ = SharedAssets() / "models" / "stories260K";
  const TempDirectory scratch_;
};

TEST_F(ControllerRestartTest, RanksComeBackWithTheirWeights) {
  auto controller = StartController("127.0.0.1:0");
  const std::string worker_address = controller->WaitEvent("waiting")["worker_address"];
  auto ranks = StartRanks(worker_address);
  controller->WaitReady();
  const std::string golden = Generate(*controller);
  EXPECT_THAT(golden, ::testing::StartsWith("Once upon a time, there was"));
  const std::set<pid_t> pids = Pids(*controller);
  EXPECT_EQ(pids.size(), 4u);
  TruncateRanksWeights();

  for (int restart = 0; restart < 3; ++restart) {
    auto client = StartClient(*controller, {"generate", "Once upon a time", "--ignore-eos",
                                            "--max-tokens", "400", "--n", "64"});
    ASSERT_TRUE(
        client->WaitForOutput([](const std::string& out) { return out.size() > 100; }, kPatience));
    controller->process().Signal(SIGKILL);
    EXPECT_NE(client->Wait(kPatience), 0);
    controller = StartController(worker_address);
    controller->WaitReady();
    EXPECT_EQ(Generate(*controller), golden);
    EXPECT_EQ(Pids(*controller), pids);
  }
  controller->process().Signal(SIGINT);
  EXPECT_EQ(controller->process().Wait(kPatience), 0);
  EXPECT_EQ(ranks->Wait(kPatience), 0) << ranks->err();
}

// As for a new certificate or token file: what was asked is answered, and nothing is loaded again.
TEST_F(ControllerRestartTest, AnOrderlyStopMayKeepTheRanks) {
  auto controller = StartController("127.0.0.1:0", {"--keep-ranks"});
  const std::string worker_address = controller->WaitEvent("waiting")["worker_address"];
  auto ranks = StartRanks(worker_address);
  controller->WaitReady();
  const std::set<pid_t> pids = Pids(*controller);
  TruncateRanksWeights();
  auto client = StartClient(*controller, {"generate", "Once upon a time", "--ignore-eos",
                                          "--max-tokens", "400", "--n", "4"});
  ASSERT_TRUE(
      client->WaitForOutput([](const std::string& out) { return out.size() > 100; }, kPatience));
  controller->process().Signal(SIGTERM);
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
  EXPECT_EQ(controller->process().Wait(kPatience), 0);
  controller = StartController(worker_address);
  controller->WaitReady();
  EXPECT_EQ(Pids(*controller), pids);
  controller->process().Signal(SIGTERM);  // without the flag they end with it
  EXPECT_EQ(controller->process().Wait(kPatience), 0);
  EXPECT_EQ(ranks->Wait(kPatience), 0) << ranks->err();
}

// What the user sees of two kills is a pause.
TEST_F(ControllerRestartTest, WithAJournalClientsGoOn) {
  const std::vector<std::string> journal = {"--journal", (scratch_ / "journal").string()};
  auto controller = StartController("127.0.0.1:0", journal);
  const std::string worker_address = controller->WaitEvent("waiting")["worker_address"];
  auto ranks = StartRanks(worker_address);
  controller->WaitReady();
  const std::vector<std::string> generate = {
      "generate", "Once upon a time", "--ignore-eos", "--max-tokens", "450", "--n", "32", "--seed",
      "7"};
  auto undisturbed = StartClient(*controller, generate);
  ASSERT_EQ(undisturbed->Wait(kPatience), 0) << undisturbed->err();

  auto client = StartClient(*controller, generate);
  for (size_t num_bytes : {100, 600}) {
    ASSERT_TRUE(client->WaitForOutput(
        [&](const std::string& out) { return out.size() > num_bytes; }, kPatience));
    const std::string listen = controller->address();
    controller->process().Signal(SIGKILL);
    controller->process().Wait(kPatience);
    controller = StartController(worker_address, journal, listen);
    controller->WaitReady();
  }
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
  EXPECT_EQ(client->out(), undisturbed->out());
  EXPECT_THAT(client->err(), HasSubstr("lost the server"));
  controller->process().Signal(SIGINT);
  EXPECT_EQ(controller->process().Wait(kPatience), 0);
}

TEST_F(ControllerRestartTest, TheSearchEndsWhenToldTo) {
  auto controller = StartController("127.0.0.1:0");
  auto ranks =
      StartRanks(controller->WaitEvent("waiting")["worker_address"], {"--rejoin-seconds", "0"});
  controller->WaitReady();
  controller->process().Signal(SIGKILL);
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("lost the controller"));
}

// Two jobs for one controller: the later takes over, the other leaves it alone.
TEST_F(ControllerRestartTest, ALaterJobTakesOver) {
  auto controller = StartController("127.0.0.1:0");
  const std::string worker_address = controller->WaitEvent("waiting")["worker_address"];
  auto first = StartRanks(worker_address);
  controller->WaitReady();
  const std::set<pid_t> first_pids = Pids(*controller);
  auto second = StartRanks(worker_address);
  EXPECT_NE(first->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(first->err() + first->out(), HasSubstr("refuses this rank"));
  EXPECT_THAT(Generate(*controller), ::testing::StartsWith("Once upon a time, there was"));
  EXPECT_NE(Pids(*controller), first_pids);
  controller->process().Signal(SIGINT);
  EXPECT_EQ(controller->process().Wait(kPatience), 0);
  EXPECT_EQ(second->Wait(kPatience), 0) << second->err();
}

}  // namespace
}  // namespace lockstep::testing
