// A real server over real ranks: what a user sees.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/fd.h"
#include "kernels/base/usable_cores.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/read_file.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServeTest : public ::testing::Test {
 protected:
  void SetUp() override{SKIP_WITHOUT_ASSET(model_)}

  std::vector<std::string> Serve(int tp, int pp, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"serve",
                                          model_.string(),
                                          "--tp",
                                          std::to_string(tp),
                                          "--pp",
                                          std::to_string(pp),
                                          "--num-kv-blocks",
                                          "256",
                                          "--threads-per-rank",
                                          "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Ctrl-C as a shell would send it, and everything that must be true afterwards.
  static void ExpectCleanStop(Server& server) {
    server.process().Signal(SIGINT);
    EXPECT_EQ(server.process().Wait(kPatience), 0) << server.process().err();
    EXPECT_THAT(server.process().Marked(), IsEmpty());
    EXPECT_THAT(server.RuntimeFiles(), IsEmpty());
  }

  static Finished Generate(const Server& server, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "generate");
    arguments.insert(arguments.end(), {"--server", server.address(), "--quiet"});
    return RunLockstep(arguments);
  }

  const std::filesystem::path model_ = SharedAssets() / "models" / "stories260K";
};

// The answers of one server to a fixed set of requests, without what differs from run to run.
std::string Answers(const Server& server) {
  const std::vector<std::vector<std::string>> requests = {
      {"Once upon a time", "--temperature", "0", "--seed", "3", "--max-tokens", "40", "--logprobs",
       "5"},
      {"Tim and", "--temperature", "0.8", "--seed", "7", "--max-tokens", "60", "--logprobs", "2"},
      {"The dog", "--temperature", "1.2", "--top-k", "40", "--top-p", "0.9", "--seed", "11", "--n",
       "3", "--max-tokens", "30", "--repetition-penalty", "1.1", "--prompt-logprobs", "1"}};
  std::string answers;
  for (std::vector<std::string> arguments : requests) {
    arguments.insert(arguments.begin(), "generate");
    arguments.insert(arguments.end(), {"--json", "--server", server.address()});
    const Finished finished = RunLockstep(arguments);
    EXPECT_EQ(finished.code, 0) << finished.err;
    json answer = json::parse(finished.out, nullptr, false);
    EXPECT_TRUE(answer.is_object()) << finished.out;
    answer.erase("timing");
    answer.erase("request_id");
    absl::StrAppend(&answers, answer.dump(), "\n");
  }
  return answers;
}

// Where two long texts part, with some context; empty when they are equal.
std::string FirstDifference(const std::string& one, const std::string& other) {
  if (one == other) return "";
  const auto parting = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  const size_t at = static_cast<size_t>(parting.first - one.begin());
  const size_t from = at < 60 ? 0 : at - 60;
  return absl::StrCat("at ", at, ": ...", one.substr(from, 120), "... and ...",
                      other.substr(from, 120), "...");
}

TEST_F(ServeTest, EveryLayoutPrintsTheReferenceTextAndTheSameBits) {
  const std::string expected = ReadFile(model_ / "expected_greedy_256.txt");
  ASSERT_FALSE(expected.empty());
  std::string first_answers;
  for (const auto& [tp, pp] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {4, 1}, {1, 5}, {2, 2}, {2, 5}}) {
    SCOPED_TRACE(absl::StrCat("tp ", tp, " x pp ", pp));
    const absl::Time start = absl::Now();
    Server server(Serve(tp, pp));
    const json ready = server.WaitReady();
    ASSERT_FALSE(ready.is_null());
    const Finished finished =
        Generate(server, {"Once upon a time", "--temperature", "0", "--max-tokens", "200"});
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    ASSERT_EQ(finished.code, 0) << finished.err;
    const std::string text(absl::StripSuffix(finished.out, "\n"));
    EXPECT_GT(text.size(), 300u);
    EXPECT_EQ(expected.substr(0, text.size()), text);
    const std::string answers = Answers(server);
    if (first_answers.empty()) first_answers = answers;
    EXPECT_EQ(FirstDifference(answers, first_answers), "");
    std::printf("tp %d x pp %d: ready after %.2f s, 200 tokens printed after %.2f s\n", tp, pp,
                ready["seconds"].get<double>(), seconds);
    ExpectCleanStop(server);
  }
}

TEST_F(ServeTest, ReadyEventTellsTheCapacity) {
  Server server(Serve(2, 1, {"--block-size", "8", "--max-model-len", "100"}));
  const json ready = server.WaitReady();
  ASSERT_FALSE(ready.is_null());
  EXPECT_EQ(ready["num_kv_blocks"], 256);
  EXPECT_EQ(ready["kv_capacity_tokens"], 2048);
  EXPECT_EQ(ready["max_model_len"], 100);
  EXPECT_EQ(ready["full_length_sequences"], 256 / 13);
  const json status = server.Status();
  EXPECT_EQ(status["status"]["state"], "STATE_SERVING");
  ASSERT_EQ(status["status"]["ranks"].size(), 2u);
  for (const json& rank : status["status"]["ranks"]) {
    const double loaded = rank["loaded_bytes"].get<double>();
    const double shard = rank["shard_bytes"].get<double>();
    EXPECT_GT(shard, 0);
    EXPECT_LE(loaded, 1.05 * shard);
  }
}

TEST_F(ServeTest, ReplicasDivideTheCores) {
  Server server({"serve", model_.string(), "--replicas", "2", "--num-kv-blocks", "256"});
  const int threads = std::max(NumUsableCores() / 2, 1);
  EXPECT_EQ(server.WaitEvent("plan")["threads_per_rank"], threads);
  for (const int replica : {0, 1}) {
    const json loaded = server.WaitEvent("rank_loaded", replica);
    ASSERT_FALSE(loaded.is_null());
    EXPECT_THAT(loaded["backend"], HasSubstr(", " + std::to_string(threads) + " thread"));
  }
  server.WaitReady();
  ExpectCleanStop(server);
}

// mpirun knows its own host by one name only.
TEST_F(ServeTest, ThisHostMayBeAmongHostsByAnyName) {
  for (const std::string hosts : {"127.0.0.1:2", "localhost:1,127.0.0.1:1"}) {
    SCOPED_TRACE(hosts);
    // No remote shell is needed.
    Server server(Serve(2, 1, {"--hosts", hosts, "--rsh-agent", "/bin/false"}));
    ASSERT_FALSE(server.WaitReady().is_null());
    EXPECT_THAT(Generate(server, {"Once upon a time", "--temperature", "0"}).out,
                ::testing::StartsWith("Once upon a time, there was"));
    ExpectCleanStop(server);
  }
}

TEST_F(ServeTest, SeveralPromptsAreGroupedInTheirOrder) {
  Server server(Serve(1, 1));
  server.WaitReady();
  const Finished finished =
      Generate(server, {"Once", "The dog", "--temperature", "0", "--max-tokens", "20"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_THAT(finished.out, ::testing::StartsWith("==> prompt 1: Once <==\nOnce"));
  EXPECT_THAT(finished.out, HasSubstr("\n\n==> prompt 2: The dog <==\nThe dog"));
}

// Steps of as many first tokens as there are slots, after which no step may be due: token ids on
// their way to the first stage must not wait for it.
TEST_F(ServeTest, StepsOfFirstTokensAloneGoThroughAPipeline) {
  Server server(Serve(1, 2, {"--max-restarts", "0"}));
  server.WaitReady();
  std::vector<std::string> arguments(32, "a");
  arguments.insert(arguments.end(), {"--n", "64", "--max-tokens", "1", "--json"});
  const Finished finished = Generate(server, arguments);
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(std::count(finished.out.begin(), finished.out.end(), '\n'), 32);
  ExpectCleanStop(server);
}

TEST_F(ServeTest, RequestsThatCannotBeServedAreOneLineAndTheServerGoesOn) {
  Server server(Serve(2, 1));
  server.WaitReady();
  const std::string long_prompt(5000, 'a');
  const std::vector<std::vector<std::string>> wrong = {{"hi", "--temperature", "-1"},
                                                       {"hi", "--temperature", "nan"},
                                                       {"hi", "--top-p", "0"},
                                                       {"hi", "--max-tokens", "0"},
                                                       {"hi", "--n", "1000"},
                                                       {"hi", "--stop-token-ids", "99999"},
                                                       {"--token-ids", "512", "--no-echo"},
                                                       {long_prompt},
                                                       {"\xff\xfe"}};
  for (const std::vector<std::string>& arguments : wrong) {
    SCOPED_TRACE(arguments.back().substr(0, 20));
    const Finished finished = Generate(server, arguments);
    EXPECT_EQ(finished.code, 1) << finished.out;
    EXPECT_THAT(finished.err, ::testing::StartsWith("lockstep generate: "));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_LT(finished.seconds, 60);
  }
  EXPECT_EQ(Generate(server, {"Once", "--max-tokens", "5"}).code, 0);
}

TEST_F(ServeTest, WhatIsRefusedAtTheStartIsAnEventToo) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"serve", "/nonexistent"},
           {"controller", "/nonexistent", "--secret-file", "/nonexistent/secret"}}) {
    std::vector<std::string> arguments = command;
    arguments.push_back("--json");
    const Finished finished = RunLockstep(arguments);
    EXPECT_EQ(finished.code, 1);
    const json event = json::parse(finished.out, nullptr, false);
    ASSERT_TRUE(event.is_object()) << finished.out;
    EXPECT_EQ(event["event"], "failed");
    EXPECT_EQ(finished.err, absl::StrCat("lockstep ", command[0], ": ",
                                         event["message"].get<std::string>(), "\n"));
  }
}

// In storage that does not answer: a pipe.
TEST_F(ServeTest, AStartThatHangsCanBeInterrupted) {
  const TempDirectory scratch;
  const std::string secret = (scratch / "secret").string();
  ASSERT_EQ(::mkfifo(secret.c_str(), 0600), 0);
  Process server(
      {LockstepBinary(), "controller", model_.string(), "--json", "--secret-file", secret});
  Fd held;  // once it reads
  for (int i = 0; i < 3000 && !held.valid(); ++i) {
    held = Fd(::open(secret.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    absl::SleepFor(absl::Milliseconds(10));
  }
  ASSERT_TRUE(held.valid()) << server.err();
  server.Signal(SIGINT);
  EXPECT_EQ(server.Wait(kPatience), 0);
  EXPECT_THAT(server.out(), HasSubstr("before serving"));
}

TEST_F(ServeTest, TokenizeGoesThereAndBack) {
  Server server(Serve(1, 1));
  server.WaitReady();
  const Finished ids = RunLockstep({"tokenize", "Once upon", "--server", server.address()});
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_THAT(ids.out, ::testing::StartsWith("1,"));
  const Finished text =
      RunLockstep({"tokenize", "--token-ids", ids.out.substr(2), "--server", server.address()});
  EXPECT_THAT(text.out, HasSubstr("Once upon"));
}

TEST_F(ServeTest, BenchReportsEveryRequest) {
  Server server(Serve(2, 2));
  server.WaitReady();
  const Finished finished =
      RunLockstep({"bench", "--server", server.address(), "--json", "--quiet", "--concurrency", "8",
                   "--num-requests", "24", "--input-len", "4:40", "--output-len", "16",
                   "--slo-ttft-ms", "100000"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const json report = json::parse(finished.out, nullptr, false);
  EXPECT_EQ(report["num_completed"], 24);
  EXPECT_EQ(report["output_tokens"], 24 * 16);
  EXPECT_EQ(report["goodput"]["num_within_slo"], 24);
  EXPECT_GT(report["ttft_ms"]["p50"], 0.0);
}

TEST_F(ServeTest, BenchSaysWhyRequestsFailed) {
  Server server(Serve(1, 1));
  server.WaitReady();
  const Finished bench =
      RunLockstep({"bench", "--server", server.address(), "--num-requests", "4", "--temperature",
                   "-1", "--input-len", "4", "--output-len", "4", "--quiet"});
  EXPECT_EQ(bench.code, 1);
  EXPECT_THAT(bench.out, ::testing::ContainsRegex("INVALID_ARGUMENT: 4, the first: .*temperature"));
}

TEST_F(ServeTest, AnIdleServerSleeps) {
  Server server(Serve(2, 2));
  server.WaitReady();
  Generate(server, {"Once", "--max-tokens", "20"});
  const std::vector<pid_t> processes = server.process().Marked();
  EXPECT_GE(processes.size(), 6u);  // serve, mpirun, four ranks
  const auto total = [&] {
    double seconds = 0.0;
    for (const pid_t pid : processes) seconds += CpuSeconds(pid);
    return seconds;
  };
  absl::SleepFor(absl::Milliseconds(500));
  const double before = total();
  absl::SleepFor(absl::Seconds(3));
  const double share = (total() - before) / 3.0;
  std::printf("idle: %.1f %% of a core over %zu processes\n", 100.0 * share, processes.size());
  EXPECT_LT(share, 0.30);
}

}  // namespace
}  // namespace lockstep::testing
