// Lost ranks: a pause for clients, token for token the same answers, no orphans; and when it is
// given up.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/kept_process.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class RecoveryTest : public ::testing::Test {
 protected:
  void SetUp() override{SKIP_WITHOUT_ASSET(model_)}

  std::unique_ptr<Server> Serve(const std::vector<std::string>& more = {}, const char* tp = "2",
                                const char* pp = "2",
                                const std::string& program = LockstepBinary()) const {
    std::vector<std::string> arguments = {
        "serve", model_.string(),      "--tp", tp, "--pp", pp, "--num-kv-blocks",
        "1024",  "--threads-per-rank", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto server = std::make_unique<Server>(arguments, "127.0.0.1:0", program);
    server->WaitReady();
    return server;
  }
  // Seeded, with several outputs; long enough to be running when a rank is lost.
  static std::vector<std::string> Generation(const char* num_outputs = "12") {
    return {"generate",
            "Once upon a time",
            "--ignore-eos",
            "--max-tokens",
            "400",
            "--n",
            num_outputs,
            "--seed",
            "7"};
  }
  static std::unique_ptr<Process> StartGeneration(const Server& server,
                                                  const char* num_outputs = "12") {
    auto client = StartClient(server, Generation(num_outputs));
    EXPECT_TRUE(
        client->WaitForOutput([](const std::string& out) { return out.size() > 100; }, kPatience));
    return client;
  }
  static json Rank(Server& server, int rank, int replica = 0) {
    const json status = server.Status();
    for (const json& each : status["status"]["ranks"]) {
      if (each.value("rank", 0) == rank && each.value("replica", 0) == replica) return each;
    }
    ADD_FAILURE() << "no rank " << rank;
    return {};
  }
  static pid_t PidOf(Server& server, int rank, int replica = 0) {
    return Rank(server, rank, replica)["pid"].get<pid_t>();
  }
  static bool WaitServing(Server& server, int replica, int epoch) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (absl::Now() < deadline) {
      const json status = server.Status()["status"]["replicas"][replica];
      if (status["state"] == "STATE_SERVING" && status["epoch"] == epoch) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  }
  // The weights were packed already when the rank started.
  static void ExpectMapped(const json& rank) {
    EXPECT_EQ(rank.value("mapped_bytes", 0), rank.value("weight_bytes", -1)) << rank;
    EXPECT_EQ(rank.value("loaded_bytes", -1), 0) << rank;
  }
  static void Stop(Server& server) {
    server.process().Signal(SIGINT);
    EXPECT_EQ(server.process().Wait(kPatience), 0) << server.process().err();
    EXPECT_TRUE(server.process().WaitUntilNoneMarked(absl::Seconds(20)));
    EXPECT_THAT(server.RuntimeFiles(), IsEmpty());
  }
  const std::filesystem::path model_ = SharedAssets() / "models" / "stories260K";
};

// Stops one thread of another process until that process is killed, at the latest with this object.
// Its tracer is told of its end first and must take it, else nobody else can.
class FrozenThread {
 public:
  explicit FrozenThread(pid_t tid) : tid_(tid) {
    std::promise<bool> frozen;
    std::future<bool> is_frozen = frozen.get_future();
    tracer_ = std::thread([this, tid, frozen = std::move(frozen)]() mutable {
      const bool seized = ::ptrace(PTRACE_SEIZE, tid, 0, 0) == 0;
      const bool stopped = seized && ::ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0;
      frozen.set_value(stopped);
      int status = 0;
      while (stopped && ::waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status)) {
      }
      has_ended_ = true;
    });
    is_frozen_ = is_frozen.get();
  }
  ~FrozenThread() {
    if (is_frozen_ && !has_ended_) ::kill(tid_, SIGKILL);
    tracer_.join();
  }
  bool is_frozen() const { return is_frozen_; }

 private:
  const pid_t tid_;
  std::thread tracer_;
  bool is_frozen_ = false;
  std::atomic<bool> has_ended_ = false;
};

class LostRankTest : public RecoveryTest,
                     public ::testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(LostRankTest, IsAPauseAndNothingElse) {
  const auto [rank, signal] = GetParam();
  auto server = Serve({"--rank-timeout-seconds", "2"});
  auto undisturbed = StartGeneration(*server);
  ASSERT_EQ(undisturbed->Wait(kPatience), 0) << undisturbed->err();
  const pid_t victim = PidOf(*server, rank);
  auto client = StartGeneration(*server);
  ::kill(victim, signal);
  ASSERT_FALSE(server->WaitEvent("rank_lost").is_null());
  const json restarting = server->WaitEvent("restarting");
  EXPECT_THAT(restarting["reason"], HasSubstr(absl::StrCat("rank ", rank, " "))) << restarting;
  if (signal == SIGSTOP) {
    EXPECT_THAT(restarting["reason"], HasSubstr("; it is stopped"));
  }
  ASSERT_FALSE(server->WaitEvent("ready_again").is_null()) << server->process().err();
  ASSERT_EQ(client->Wait(kPatience), 0) << client->err();
  EXPECT_EQ(client->out(), undisturbed->out());
  EXPECT_NE(::kill(victim, 0), 0) << "the lost rank still runs";
  const json status = server->Status()["status"];
  EXPECT_EQ(status["replicas"][0]["epoch"], 2) << server->process().out();
  EXPECT_EQ(status.value("kv_blocks_in_use", -1), 0) << status;
  for (const json& each : status["ranks"]) ExpectMapped(each);
  Stop(*server);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LostRankTest,
                         ::testing::Combine(::testing::Values(0, 3),
                                            ::testing::Values(SIGKILL, SIGSTOP)));

TEST_F(RecoveryTest, ADirectoryKeepsPackedWeightsForTheNextServer) {
  const TempDirectory cache;
  std::string answers[2];
  for (std::string& answer : answers) {
    auto server = Serve({"--weight-cache", (cache / "here").string()});
    auto client = StartGeneration(*server);
    ASSERT_EQ(client->Wait(kPatience), 0) << client->err();
    answer = client->out();
    if (&answer == &answers[1]) {
      for (int rank = 0; rank < 4; ++rank) ExpectMapped(Rank(*server, rank));
    }
    Stop(*server);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

// The step thread alone is stopped, as in a collective that never ends: heartbeats go on.
TEST_F(RecoveryTest, AStuckStepIsNoticedAlthoughHeartbeatsGoOn) {
  auto server = Serve();
  auto undisturbed = StartGeneration(*server);
  ASSERT_EQ(undisturbed->Wait(kPatience), 0) << undisturbed->err();
  FrozenThread step_thread(PidOf(*server, 2));  // a process's first thread
  if (!step_thread.is_frozen()) GTEST_SKIP() << "SKIPPED: this machine forbids tracing";
  auto client = StartClient(*server, Generation());
  const json lost = server->WaitEvent("rank_lost");
  ASSERT_FALSE(lost.is_null());
  EXPECT_THAT(lost["message"], HasSubstr("has no result after")) << lost;
  ASSERT_FALSE(server->WaitEvent("ready_again").is_null()) << server->process().err();
  ASSERT_EQ(client->Wait(kPatience), 0) << client->err();
  EXPECT_EQ(client->out(), undisturbed->out());
  Stop(*server);
}

TEST_F(RecoveryTest, RequestsOfALostReplicaMoveToTheOther) {
  auto server = Serve({"--replicas", "2"}, "1", "1");
  while (server->Status()["status"]["replicas"][1]["state"] != "STATE_SERVING" ||
         server->Status()["status"]["replicas"][0]["state"] != "STATE_SERVING") {
    absl::SleepFor(absl::Milliseconds(20));
  }
  auto undisturbed = StartGeneration(*server);
  ASSERT_EQ(undisturbed->Wait(kPatience), 0) << undisturbed->err();
  const pid_t victims[] = {PidOf(*server, 0, 1), PidOf(*server, 0, 0)};
  auto one = StartGeneration(*server);
  auto two = StartGeneration(*server);
  for (const pid_t victim : victims) ::kill(victim, SIGKILL);
  ASSERT_EQ(one->Wait(kPatience), 0) << one->err();
  ASSERT_EQ(two->Wait(kPatience), 0) << two->err();
  EXPECT_EQ(one->out(), undisturbed->out());
  EXPECT_EQ(two->out(), undisturbed->out());
  Stop(*server);
}

// $PATH begins with a directory that has nothing but a link to mpirun.
class MpirunLink {
 public:
  MpirunLink() : path_(std::getenv("PATH")) {
    for (const absl::string_view part : absl::StrSplit(path_, ':')) {
      const std::filesystem::path program = std::filesystem::path(std::string(part)) / kName;
      if (program_.empty() && std::filesystem::exists(program)) program_ = program;
    }
    ::setenv("PATH", absl::StrCat(directory_.path().string(), ":", path_).c_str(), 1);
    if (exists()) Make();
  }
  ~MpirunLink() { ::setenv("PATH", path_.c_str(), 1); }
  bool exists() const { return !program_.empty(); }
  void Make() { std::filesystem::create_symlink(program_, directory_ / kName); }
  void Remove() { std::filesystem::remove(directory_ / kName); }

 private:
  static constexpr char kName[] = "mpirun.openmpi";
  const std::string path_;
  const TempDirectory directory_;
  std::filesystem::path program_;
};

TEST_F(RecoveryTest, AReplicaThatCannotBeStartedIsTriedAgain) {
  MpirunLink mpirun;
  if (!mpirun.exists()) GTEST_SKIP() << "SKIPPED: there is no mpirun.openmpi on $PATH";
  auto server = Serve({"--replicas", "2", "--max-restarts", "20"}, "1", "1");
  ASSERT_TRUE(WaitServing(*server, 0, 1) && WaitServing(*server, 1, 1));
  mpirun.Remove();
  ::kill(PidOf(*server, 0, 0), SIGKILL);
  const auto has_failed = [&] { return absl::StrContains(server->process().out(), "cannot run"); };
  for (int i = 0; i < 3000 && !has_failed(); ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(has_failed()) << server->process().out();
  auto client = StartGeneration(*server);
  ASSERT_EQ(client->Wait(kPatience), 0) << client->err();  // by the other
  mpirun.Make();
  ASSERT_FALSE(server->WaitEvent("ready_again", 0).is_null()) << server->process().out();
  Stop(*server);
}

// A copy of the program that another file replaces, as an upgrade does.
TEST_F(RecoveryTest, AnUpgradeUnderARunningServerCostsNoRestart) {
  const TempDirectory installed;
  const std::filesystem::path program = installed / "lockstep";
  std::filesystem::copy_file(LockstepBinary(), program);
  auto server = Serve({"--http-listen", "127.0.0.1:0"}, "2", "2", program.string());
  const pid_t gateway = server->WaitEvent("gateway")["pid"].get<pid_t>();
  std::filesystem::rename(installed.Write("newer", "#!/bin/sh\nexit 1\n"), program);
  auto client = StartGeneration(*server);
  ::kill(PidOf(*server, 3), SIGKILL);
  ::kill(gateway, SIGKILL);
  EXPECT_FALSE(server->WaitEvent("ready_again").is_null()) << server->process().out();
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
  EXPECT_TRUE(server->process().WaitForOutput(
      [](const std::string& out) {
        const size_t first = out.find("\"event\":\"gateway\"");
        return out.find("\"event\":\"gateway\"", first + 1) != std::string::npos;
      },
      kPatience))
      << server->process().out();
  Stop(*server);
}

TEST_F(RecoveryTest, ACrashLoopIsGivenUp) {
  auto server = Serve({"--max-restarts", "1"});
  ::kill(PidOf(*server, 1), SIGKILL);
  ASSERT_FALSE(server->WaitEvent("ready_again").is_null());
  const pid_t second = PidOf(*server, 2);
  auto client = StartGeneration(*server, "64");
  ::kill(second, SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 1);
  EXPECT_THAT(server->process().err(), HasSubstr("rank 2"));
  EXPECT_THAT(server->process().err(), HasSubstr("1 restarts within 5m"));
  EXPECT_NE(client->Wait(kPatience), 0);
  EXPECT_THAT(client->err(), HasSubstr("rank 2"));
  EXPECT_TRUE(server->process().WaitUntilNoneMarked(absl::Seconds(20)));
}

TEST_F(RecoveryTest, AReplicasCrashLoopIsItsOwn) {
  auto server = Serve({"--replicas", "2", "--max-restarts", "1"}, "2", "1");
  ASSERT_TRUE(WaitServing(*server, 0, 1) && WaitServing(*server, 1, 1));
  auto client = StartGeneration(*server);
  ::kill(PidOf(*server, 1, 0), SIGKILL);
  ASSERT_TRUE(WaitServing(*server, 0, 2));
  ::kill(PidOf(*server, 1, 0), SIGKILL);
  const json given_up = server->WaitEvent("given_up", 0);
  ASSERT_FALSE(given_up.is_null()) << server->process().out();
  EXPECT_THAT(given_up["reason"],
              AllOf(StartsWith("replica 0, rank "), HasSubstr("1 restarts within 5m")));
  const json replica = server->Status()["status"]["replicas"][0];
  EXPECT_EQ(replica["state"], "STATE_GIVEN_UP");
  EXPECT_EQ(replica["detail"], given_up["reason"]);
  ASSERT_EQ(client->Wait(kPatience), 0) << client->err();

  ::kill(PidOf(*server, 1, 1), SIGKILL);  // the other one's first
  ASSERT_TRUE(WaitServing(*server, 1, 2));
  auto undisturbed = StartGeneration(*server);
  ASSERT_EQ(undisturbed->Wait(kPatience), 0) << undisturbed->err();
  EXPECT_EQ(client->out(), undisturbed->out());
  ::kill(PidOf(*server, 1, 1), SIGKILL);
  EXPECT_EQ(server->process().Wait(kPatience), 1);
  EXPECT_THAT(server->process().err(), HasSubstr("replica 1, rank "));
  EXPECT_TRUE(server->process().WaitUntilNoneMarked(absl::Seconds(20)));
}

// As one whose driver hangs: there is no other start, others go on, and the server can be stopped.
TEST_F(RecoveryTest, AReplicaWhoseRankDoesNotDieIsGivenUp) {
  auto server = Serve({"--replicas", "2", "--kill-timeout-seconds", "3"}, "2", "1");
  ASSERT_TRUE(WaitServing(*server, 0, 1) && WaitServing(*server, 1, 1));
  const pid_t victim = PidOf(*server, 1, 0);
  auto client = StartGeneration(*server);
  const KeptProcess kept(victim);
  if (!kept.is_kept()) GTEST_SKIP() << "this machine forbids tracing";
  ::kill(victim, SIGKILL);
  const json given_up = server->WaitEvent("given_up", 0);
  ASSERT_FALSE(given_up.is_null()) << server->process().out();
  EXPECT_THAT(
      given_up["reason"],
      AllOf(StartsWith("replica 0, rank 1 "), HasSubstr(absl::StrCat("process ", victim, " on ")),
            HasSubstr("does not die of SIGKILL: a driver or storage hangs")));
  ASSERT_EQ(client->Wait(kPatience), 0) << client->err();
  server->process().Signal(SIGINT);
  EXPECT_EQ(server->process().Wait(kPatience), 0) << server->process().err();
}

// As one whose driver gives back a GPU's memory, for longer than is usual.
TEST_F(RecoveryTest, ARankThatDiesSlowlyIsWaitedFor) {
  auto server = Serve({"--kill-timeout-seconds", "6"}, "2", "1");
  const pid_t victim = PidOf(*server, 1);
  auto client = StartGeneration(*server);
  {
    const KeptProcess kept(victim);
    if (!kept.is_kept()) GTEST_SKIP() << "this machine forbids tracing";
    ::kill(victim, SIGKILL);
    EXPECT_THAT(server->WaitEvent("warning").value("message", ""),
                AllOf(HasSubstr(absl::StrCat("process ", victim, " on ")),
                      HasSubstr("the next start waits for that, at most 5s")));
    EXPECT_THAT(server->process().out(), Not(HasSubstr("restarting")));
  }
  ASSERT_FALSE(server->WaitEvent("ready_again").is_null()) << server->process().err();
  ASSERT_EQ(client->Wait(kPatience), 0) << client->err();
  Stop(*server);
}

// Until it goes, servers started run `script` as their mpirun; $real is the one of the system.
class OtherMpirun {
 public:
  explicit OtherMpirun(absl::string_view script) {
    const std::filesystem::path program = directory_ / "mpirun.openmpi";
    std::ofstream(program) << "#!/bin/bash\nPATH=${PATH#*:}\n"
                              "real=$(command -v mpirun.openmpi || command -v mpirun)\n"
                           << script;
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    ::setenv("PATH", absl::StrCat(directory_.path().string(), ":", path_).c_str(), 1);
  }
  OtherMpirun(const OtherMpirun&) = delete;
  OtherMpirun& operator=(const OtherMpirun&) = delete;
  ~OtherMpirun() { ::setenv("PATH", path_.c_str(), 1); }

 private:
  const TempDirectory directory_;
  const std::string path_ = std::getenv("PATH");
};

// As MPI_Init of Open MPI 4.1 does now and then under Slurm on busy hosts, when a peer's first
// message comes to a rank that still waits for its start. Whoever waits for "ready" gets it.
TEST_F(RecoveryTest, AStartThatCrashedIsTriedAgain) {
  const OtherMpirun crashes_once(R"(
    if mkdir "${0%/*}/has_crashed" 2>/dev/null; then kill -SEGV $$; fi
    exec "$real" "$@"
  )");
  auto server = Serve({}, "2", "1");
  EXPECT_THAT(server->WaitEvent("restarting").value("reason", ""), HasSubstr("Segmentation fault"));
  EXPECT_THAT(server->process().out(), Not(HasSubstr("ready_again")));
  const pid_t victim = PidOf(*server, 1);
  auto client = StartGeneration(*server);
  ::kill(victim, SIGKILL);
  EXPECT_FALSE(server->WaitEvent("ready_again").is_null()) << server->process().err();
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
  Stop(*server);
}

// mpirun does not always say which rank was killed.
TEST_F(RecoveryTest, TheSignalIsToldWithoutMpirunsWords) {
  const OtherMpirun keeps_it_to_itself(R"("$real" "$@" > >(grep -v 'noticed that process') 2>&1)");
  bool is_told = false;
  // On a busy machine mpirun may have taken note of it, and be ended before it ends.
  for (int attempt = 0; attempt < 5 && !is_told; ++attempt) {
    auto server = Serve({}, "2", "1");
    ::kill(PidOf(*server, 1), SIGKILL);
    is_told = absl::StrContains(server->WaitEvent("restarting").value("reason", ""),
                                "was killed by signal 9 (Killed)");
    EXPECT_FALSE(server->WaitEvent("ready_again").is_null()) << server->process().err();
    Stop(*server);
  }
  EXPECT_TRUE(is_told);
}

TEST_F(RecoveryTest, AJobThatEndsIsStartedAgain) {
  auto server = Serve();
  std::vector<pid_t> others = server->process().Marked();
  std::erase(others, server->process().pid());
  for (int rank = 0; rank < 4; ++rank) std::erase(others, PidOf(*server, rank));
  ASSERT_EQ(others.size(), 1u);  // mpirun
  auto client = StartGeneration(*server);
  ::kill(others.front(), SIGKILL);
  ASSERT_FALSE(server->WaitEvent("ready_again").is_null());
  EXPECT_EQ(client->Wait(kPatience), 0) << client->err();
  Stop(*server);
}

}  // namespace
}  // namespace lockstep::testing
