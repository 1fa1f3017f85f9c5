// How servers end: drained, at once, or by violence; never with orphans.
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ShutdownTest : public ::testing::Test {
 protected:
  void SetUp() override{SKIP_WITHOUT_ASSET(model_)}

  std::unique_ptr<Server> Serve(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        "serve", model_.string(),      "--tp", "2", "--pp", "2", "--num-kv-blocks",
        "1024",  "--threads-per-rank", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Server>(arguments);
  }
  // Long enough to be running when the next signal comes.
  static std::unique_ptr<Process> StartLongGeneration(const Server& server) {
    auto client = StartClient(server, {"generate", "Once upon a time", "--ignore-eos",
                                       "--max-tokens", "480", "--n", "16", "--seed", "1"});
    EXPECT_TRUE(
        client->WaitForOutput([](const std::string& out) { return out.size() > 100; }, kPatience));
    return client;
  }
  // -1: it is not the only process beside the server and its ranks.
  static pid_t Mpirun(Server& server, const json& ranks) {
    std::vector<pid_t> others = server.process().Marked();
    std::erase(others, server.process().pid());
    for (const json& rank : ranks) std::erase(others, rank["pid"].get<pid_t>());
    return others.size() == 1 ? others.front() : -1;
  }
  static void ExpectNothingLeft(Server& server) {
    EXPECT_TRUE(server.process().WaitUntilNoneMarked(absl::Seconds(20)));
    EXPECT_THAT(server.RuntimeFiles(), IsEmpty());
  }
  const std::filesystem::path model_ = SharedAssets() / "models" / "stories260K";
};

TEST_F(ShutdownTest, AnInterruptLetsRunningRequestsFinish) {
  auto server = Serve();
  server->WaitReady();
  auto client = StartLongGeneration(*server);
  server->process().Signal(SIGINT);
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
  EXPECT_EQ(server->process().Wait(kPatience), 0) << server->process().err();
  EXPECT_EQ(server->WaitEvent("stopped")["how"], "after all requests finished");
  ExpectNothingLeft(*server);
}

TEST_F(ShutdownTest, ASecondInterruptStopsAtOnce) {
  auto server = Serve();
  server->WaitReady();
  auto client = StartLongGeneration(*server);
  client->Signal(SIGSTOP);  // a client that does not read keeps its request alive
  server->process().Signal(SIGINT);
  server->WaitEvent("draining");
  server->process().Signal(SIGINT);
  EXPECT_EQ(server->process().Wait(kPatience), 0) << server->process().err();
  client->Signal(SIGCONT);
  ExpectNothingLeft(*server);
}

TEST_F(ShutdownTest, ADrainingServerRefusesNewRequests) {
  auto server = Serve();
  server->WaitReady();
  auto client = StartLongGeneration(*server);
  server->process().Signal(SIGTERM);
  server->WaitEvent("draining");
  const Finished refused = RunLockstep({"generate", "hi", "--server", server->address()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
}

TEST_F(ShutdownTest, AnInterruptBeforeServingStopsToo) {
  auto server = Serve();
  server->WaitEvent("plan");
  server->process().Signal(SIGINT);
  EXPECT_EQ(server->process().Wait(kPatience), 0) << server->process().err();
  ExpectNothingLeft(*server);
}

TEST_F(ShutdownTest, WithoutRestartsAKilledRankIsNamedAndEndsTheServer) {
  auto server = Serve({"--max-restarts", "0"});
  server->WaitReady();
  const json ranks = server->Status()["status"]["ranks"];
  ASSERT_EQ(ranks.size(), 4u);
  const json& victim = ranks[3];
  ::kill(victim["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 1);
  EXPECT_THAT(server->process().err(), HasSubstr(absl::StrCat("rank ", victim["rank"].get<int>())));
  EXPECT_THAT(server->process().err(), HasSubstr("stage 1"));
  EXPECT_THAT(server->process().err(), HasSubstr("signal 9"));
  ExpectNothingLeft(*server);
}

// The others may end before mpirun looks, and then it tells of those.
TEST_F(ShutdownTest, AKilledRankIsToldOfThoughMpirunDoesNot) {
  auto server = Serve({"--max-restarts", "0"});
  server->WaitReady();
  const json ranks = server->Status()["status"]["ranks"];
  ASSERT_EQ(ranks.size(), 4u);
  const pid_t mpirun = Mpirun(*server, ranks);
  ASSERT_GT(mpirun, 0);
  ::kill(mpirun, SIGSTOP);
  ::kill(ranks[2]["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 1);
  EXPECT_THAT(server->process().err(), HasSubstr("rank 2 (stage 1"));
  EXPECT_THAT(server->process().err(), HasSubstr("it was killed by signal 9 (Killed)"));
  ExpectNothingLeft(*server);
}

TEST_F(ShutdownTest, WithoutRestartsAKilledJobEndsTheServer) {
  auto server = Serve({"--max-restarts", "0"});
  server->WaitReady();
  const pid_t mpirun = Mpirun(*server, server->Status()["status"]["ranks"]);
  ASSERT_GT(mpirun, 0);
  ::kill(mpirun, SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 1);
  ExpectNothingLeft(*server);
}

TEST_F(ShutdownTest, AServerOutlivesTheReaderOfItsOutput) {
  const TempDirectory directory;
  const std::string pipe = (directory.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Process server({"/bin/sh", "-c", "exec \"$@\" > \"$0\"", pipe, LockstepBinary(), "serve",
                  model_.string(), "--tp", "2", "--num-kv-blocks", "1024", "--threads-per-rank",
                  "1", "--json", "--listen", "127.0.0.1:0"});
  json ready;
  std::ifstream reader(pipe);
  for (std::string line; ready.is_null() && std::getline(reader, line);) {
    const json event = json::parse(line, nullptr, false);
    if (event.value("event", "") == "ready") ready = event;
  }
  ASSERT_FALSE(ready.is_null()) << server.err();
  reader.close();

  const auto status = [&] {
    const Finished told = RunLockstep({"status", "--server", ready["address"], "--json"});
    return told.code == 0 ? json::parse(told.out, nullptr, false)["status"] : json();
  };
  const json before = status();
  ASSERT_EQ(before["ranks"].size(), 2u);
  const auto victim = before["ranks"][1]["pid"].get<pid_t>();
  ::kill(victim, SIGKILL);
  const auto serves_again = [&] {
    const json now = status();
    return now.is_object() && now["state"] == "STATE_SERVING" &&
           now.dump().find(absl::StrCat("\"pid\":", victim, ",")) == std::string::npos;
  };
  const absl::Time deadline = absl::Now() + kPatience;
  while (!serves_again() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(serves_again()) << server.err();
  server.Signal(SIGINT);
  EXPECT_EQ(server.Wait(kPatience), 0) << server.err();
  EXPECT_THAT(server.err(), HasSubstr("standard output: its reader is gone"));
}

TEST_F(ShutdownTest, NothingSurvivesAKilledServer) {
  auto server = Serve();
  server->WaitReady();
  EXPECT_GE(server->process().Marked().size(), 6u);
  server->process().Signal(SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 128 + SIGKILL);
  EXPECT_TRUE(server->process().WaitUntilNoneMarked(absl::Seconds(20)));
}

TEST_F(ShutdownTest, NothingSurvivesAServerKilledWhileItStarts) {
  auto server = Serve();
  ASSERT_FALSE(server->WaitEvent("plan").is_null());
  absl::SleepFor(absl::Milliseconds(150));  // mpirun is up, ranks are on their way
  server->process().Signal(SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 128 + SIGKILL);
  EXPECT_TRUE(server->process().WaitUntilNoneMarked(absl::Seconds(20)));
}

TEST_F(ShutdownTest, AnInterruptedClientCancelsItsRequest) {
  auto server = Serve();
  server->WaitReady();
  auto client = StartLongGeneration(*server);
  client->Signal(SIGINT);
  EXPECT_EQ(client->Wait(kPatience), 1);
  json status;
  for (int i = 0; i < 200; ++i) {
    status = server->Status()["status"];
    if (status["num_running"] == 0 && status["kv_blocks_in_use"] == 0) break;
  }
  EXPECT_EQ(status["num_running"], 0);
  EXPECT_EQ(status["kv_blocks_in_use"], 0);
}

}  // namespace
}  // namespace lockstep::testing
