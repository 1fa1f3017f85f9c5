// controller and worker placed by hand, as on a cluster.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/fd.h"
#include "launcher/job/mpi_command.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class ManualPlacementTest : public ::testing::Test {
 protected:
  void SetUp() override{SKIP_WITHOUT_ASSET(model_)}

  std::unique_ptr<Process> StartRanks(int count, const std::string& controller,
                                      const std::string& secret_file,
                                      const std::vector<std::string>& more = {},
                                      const std::vector<std::string>& wrapper = {}) {
    std::vector<std::string> worker = {LockstepBinary(),
                                       "worker",
                                       model_.string(),
                                       "--tp",
                                       "2",
                                       "--controller",
                                       controller,
                                       "--secret-file",
                                       secret_file,
                                       "--num-kv-blocks",
                                       "64",
                                       "--threads-per-rank",
                                       "1"};
    worker.insert(worker.end(), more.begin(), more.end());
    worker.insert(worker.begin(), wrapper.begin(), wrapper.end());
    return testing::StartRanks(count, scratch_.path(), worker);
  }

  std::vector<std::string> ControllerCommand() const {
    return {"controller",      model_.string(), "--tp",          "2",
            "--worker-listen", "127.0.0.1:0",   "--secret-file", secret_file_};
  }

  const TempDirectory scratch_;
  const std::string secret_file_ = (scratch_ / "secret").string();
  const fs::path model_ = SharedAssets() / "models" / "stories260K";
};

TEST_F(ManualPlacementTest, ControllerAndRanksMeetAndServe) {
  Server controller(ControllerCommand());
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  auto ranks = StartRanks(2, waiting["worker_address"], secret_file_);
  controller.WaitReady();
  const Finished finished = RunLockstep({"generate", "Once upon a time", "--temperature", "0",
                                         "--max-tokens", "10", "--server", controller.address()});
  EXPECT_THAT(finished.out, ::testing::StartsWith("Once upon a time, there was"));
  controller.process().Signal(SIGINT);
  EXPECT_EQ(controller.process().Wait(kPatience), 0);
  EXPECT_EQ(ranks->Wait(kPatience), 0) << ranks->err();
}

// Without the launcher's settings the ranks take away the memory that Open MPI shares by
// themselves.
TEST_F(ManualPlacementTest, MpirunAloneEndsWithoutComplaints) {
  Server controller(ControllerCommand());
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  Process ranks({FindMpirun()->string(), "--allow-run-as-root", "--oversubscribe", "-n", "2",
                 LockstepBinary(), "worker", model_.string(), "--tp", "2", "--num-kv-blocks", "64",
                 "--controller", waiting["worker_address"].get<std::string>(), "--secret-file",
                 secret_file_});
  controller.WaitReady();
  controller.process().Signal(SIGINT);
  EXPECT_EQ(controller.process().Wait(kPatience), 0);
  EXPECT_EQ(ranks.Wait(kPatience), 0);
  EXPECT_THAT(ranks.err(), Not(HasSubstr("system call failed")));
  EXPECT_THAT(ranks.err(), Not(HasSubstr("ERROR")));
}

// The address is in the ready event, which does not come here.
std::string UnusedAddress() {
  const Fd any(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(any.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(any.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

TEST_F(ManualPlacementTest, ClientsAreToldThatTheServerWaitsForItsRanks) {
  const std::string address = UnusedAddress();
  Server controller({"controller", model_.string(), "--worker-listen", "127.0.0.1:0",
                     "--secret-file", (scratch_ / "secret").string()},
                    address);
  ASSERT_FALSE(controller.WaitEvent("waiting").is_null());
  const Finished bench = RunLockstep({"bench", "--server", address});
  EXPECT_EQ(bench.code, 1);
  EXPECT_THAT(bench.err, HasSubstr("the server is starting"));
  EXPECT_THAT(RunLockstep({"status", "--server", address}).out,
              HasSubstr("limits    length of sequences not known before the ranks are ready"));
}

TEST_F(ManualPlacementTest, AWrongSecretIsRefused) {
  Server controller(ControllerCommand());
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  const std::string wrong_file = (scratch_ / "wrong").string();
  {
    Process make({"/bin/sh", "-c", absl::StrCat("umask 077; echo guess > ", wrong_file)});
    ASSERT_EQ(make.Wait(kPatience), 0);
  }
  auto ranks = StartRanks(2, waiting["worker_address"], wrong_file);
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("secret"));
}

// One hangs in storage (here: reads a pipe), after MPI has brought all together.
TEST_F(ManualPlacementTest, ARankThatHangsBeforeTheOthersMeetIsNamed) {
  const std::string scratch = scratch_.path().string();
  Process make({"/bin/sh", "-c",
                absl::StrCat("cd ", scratch, "; mkdir 0 1; umask 077; echo guess > 0/secret; ",
                             "mkfifo 1/secret")});
  ASSERT_EQ(make.Wait(kPatience), 0);
  auto ranks =
      StartRanks(2, "127.0.0.1:1", "secret", {"--preflight-seconds", "1", "--rejoin-seconds", "0"},
                 {"/bin/sh", "-c",
                  absl::StrCat("cd ", scratch, "/$OMPI_COMM_WORLD_RANK; exec \"$0\" \"$@\"")});
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("rank 1 of 2 did not come within 1s"));
}

// Requests would end ranks that cannot hold them.
TEST_F(ManualPlacementTest, RanksWithOtherLimitsAreRefusedByFlagAndNumbers) {
  Server controller(ControllerCommand());
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  const std::string address = waiting["worker_address"];
  auto ranks = StartRanks(2, address, secret_file_, {"--block-size", "8"});
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(),
              HasSubstr("--block-size 8 does not match the controller's 16"));
  ranks = StartRanks(2, address, secret_file_, {"--max-model-len", "64"});
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(),
              HasSubstr("--max-model-len 64 is less than the controller's 512"));

  ranks = StartRanks(2, address, secret_file_, {"--max-num-seqs", "300"});
  controller.WaitReady();
}

// As wrapper scripts start them.
TEST_F(ManualPlacementTest, RanksStartedWithDifferentFlagsAreNamedBeforeTheyDial) {
  Server controller(ControllerCommand());
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  const std::pair<const char*, const char*> flags[] = {
      {"--dtype bf16", " has dtype bf16, rank 0 on "},
      {"--max-batched-tokens 64", " has --max-batched-tokens 64, rank 0 on "}};
  for (const auto& [flag, told] : flags) {
    const std::string script =
        absl::StrCat("test $OMPI_COMM_WORLD_RANK = 0 || set -- \"$@\" ", flag, "; exec \"$@\"");
    auto ranks = StartRanks(2, waiting["worker_address"], secret_file_, {},
                            {"/bin/sh", "-c", script, "rank"});
    EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
    EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr(told));
    EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr(": start all ranks with the same --"));
  }
}

// Instead of coming again and again.
TEST_F(ManualPlacementTest, RanksWithTooLittleRoomEndWithTheReason) {
  std::vector<std::string> command = ControllerCommand();
  command.insert(command.end(), {"--max-model-len", "512", "--block-size", "4"});
  Server controller(command);
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  auto ranks = StartRanks(2, waiting["worker_address"], secret_file_, {"--block-size", "4"});
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("refuses this rank: the replica is lost"));
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("needs 128 KV blocks"));
}

TEST_F(ManualPlacementTest, KeptRanksOutliveAControllerWithAWrongFlag) {
  std::vector<std::string> command = ControllerCommand();
  command.push_back("--keep-ranks");
  std::string address;
  std::unique_ptr<Process> ranks;
  {
    Server first(command);
    const json waiting = first.WaitEvent("waiting");
    ASSERT_FALSE(waiting.is_null());
    address = waiting["worker_address"];
    ranks = StartRanks(2, address, secret_file_);
    first.WaitReady();
    first.process().Signal(SIGINT);
    EXPECT_EQ(first.process().Wait(kPatience), 0);
  }
  *std::find(command.begin(), command.end(), "127.0.0.1:0") = address;
  {
    std::vector<std::string> wrong = command;
    wrong.insert(wrong.end(), {"--max-num-seqs", "300"});
    Server second(wrong);
    const json warning = second.WaitEvent("warning");
    ASSERT_FALSE(warning.is_null());
    EXPECT_THAT(std::string(warning["message"]),
                HasSubstr("are refused: --max-num-seqs 256 is less than the controller's 300"));
    second.process().Signal(SIGINT);
    EXPECT_EQ(second.process().Wait(kPatience), 0);
  }
  Server third(command);
  third.WaitReady();
  third.process().Signal(SIGTERM);
  EXPECT_EQ(third.process().Wait(kPatience), 0);
}

TEST_F(ManualPlacementTest, TooFewRanksNameBothNumbers) {
  auto ranks = StartRanks(1, "127.0.0.1:1", secret_file_);
  EXPECT_NE(ranks->Wait(kPatience).value_or(0), 0);
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("the MPI job has 1 ranks"));
  EXPECT_THAT(ranks->err() + ranks->out(), HasSubstr("needs 2"));
}

}  // namespace
}  // namespace lockstep::testing
