// Starts that cannot work: one line that says what to do, quickly, and nothing left behind.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/base/host_name.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class WrongUsageTest : public ::testing::Test {
 protected:
  static void ExpectOneLine(const Finished& finished, int code,
                            const ::testing::Matcher<const std::string&>& message) {
    EXPECT_EQ(finished.code, code) << finished.err;
    EXPECT_THAT(finished.err, AllOf(StartsWith("lockstep"), message));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_LT(finished.seconds, 60);
  }

  static void EditConfig(const fs::path& model, const char* key, const nlohmann::json& value) {
    const fs::path file = model / "config.json";
    fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
    nlohmann::json config = nlohmann::json::parse(std::ifstream(file));
    config[key] = value;
    std::ofstream(file) << config;
  }

  const TempDirectory scratch_;
  const fs::path model_ = SharedAssets() / "models" / "stories260K";
};

TEST_F(WrongUsageTest, FlagsAreRefusedWithTheirValueAndLimits) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"serve"}, "model"},
      {{"serve", "m", "--tp", "0"}, "--tp: 0"},
      {{"serve", "m", "--tp", "two"}, "two"},
      {{"serve", "m", "--tpp", "2"}, "--tpp"},
      {{"serve", "m", "--block-size", "-1"}, "-1"},
      {{"serve", "m", "--isa", "sse"}, "sse"},
      {{"serve", "m", "--kv-cache-dtype", "q8_0"}, "--kv-cache-dtype: q8_0"},
      {{"serve", "m", "-ctk", "q8_0"}, "-ctk is --kv-cache-dtype fp8 here"},
      {{"serve", "m", "--weight-cache", "/proc/self/stat"}, "not a directory"},
      {{"serve", "m", "--kv-cache-gib", "1", "--num-kv-blocks", "5"}, "--num-kv-blocks"},
      {{"serve", "m", "--api-token-file", ""}, "--api-token-file: the value is empty"},
      {{"serve", "m", "--hosts="}, "--hosts: the value is empty"},
      {{"controller", "m", "--secret-file", "s", "--worker-tls-cert", ""}, "--worker-tls-cert"},
      {{"generate", "--n", "2000000000", "hi"}, "--n: 2000000000 is not a number from 1 to 4096"},
      {{"generate", "--logprobs", "2", "hi"}, "--prompt-logprobs need --json"},
      {{"generate", "--attach", "x", "hi"}, "--attach is instead of a prompt"},
      {{"eval", "--quantize", "int8"}, "--quantize requires model"},
      {{"eval", "m", "--server", "h:1"}, "--server is for a server that runs"},
      {{"eval", "m", "--insecure-token"}, "--insecure-token is for a server that runs"},
      {{"gateway", "--listen", "0.0.0.0:0"}, "--insecure-listen"},
      {{"gateway", "--listen", "8000"}, "--listen: '8000' is not HOST:PORT"},
      {{"gateway", "--https-cert", "c"}, "--https-cert requires --https-key"},
      {{"gateway", "--max-connections", "0"}, "--max-connections: 0"},
      {{"serve", "m", "--listen", "foo"}, "--listen: 'foo' is not HOST:PORT"},
      {{"controller", "m", "--secret-file", "s", "--worker-listen", "h:"}, "--worker-listen: 'h:'"},
      {{"bench", "--rate", "0"}, "--rate: 0"},
      {{"bench", "--input-len", "5:1"}, "--input-len: '5:1'"},
      {{"bench", "--output-len", "0"}, "--output-len: '0'"},
      {{"bench", "--prompts", "/dev/null"}, "holds no prompt"},
      {{"generate", "--server", "nowhere", "hi"}, "'nowhere'"},
      {{"model", "synth", "--shape", "tiny"}, "output"},
      {{"generate", "--seed", "-5", "hi"}, "--seed: '-5' is not a decimal number from 0 to 184467"},
      {{"bench", "--seed", "18446744073709551616"}, "18446744073709551616"},
      {{"model", "synth", "--shape", "tiny", "--seed", "010", "out"}, "'010'"},
      {{"serve", "m", "--tp", "010"}, "--tp: 010 is not a number from 1 to 65536"},
      {{"serve", "m", "--max-model-len", "1"}, "--max-model-len: 1 is not a number from 2"},
      {{"plan", "--explain", "405b-slides", "--json"}, "--json excludes --explain"},
      {{"plan", "--model", "llama-3.2-1b", "--gpu", "cpu", "--layers-per-kv", "4"},
       "--layers-per-kv is not for --gpu cpu"},
      {{"serve", "m", "--port", "8000"}, "; --port is --http-listen HOST:PORT"},
      {{"serve", "m", "--tensor-parallel-size=2"}, "; --tensor-parallel-size is --tp N here"},
      {{"serve", "--model", "m"}, "; --model is not needed: MODEL stands without a flag"},
      {{"gateway", "--host", "a"}, "; --host is --listen HOST:PORT here"},
      {{"generate", "--port", "8000", "hi"}, "; --port is --server HOST:PORT here"},
      {{"frobnicate"}, "frobnicate"}};
  for (const auto& [arguments, message] : wrong) {
    SCOPED_TRACE(arguments.back());
    ExpectOneLine(RunLockstep(arguments), 2, AllOf(HasSubstr(message), HasSubstr("--help")));
  }
}

// A service that is started again after failures must not be after these.
TEST_F(WrongUsageTest, FlagsThatDoNotFitTheModelOrEachOtherAreWrongToo) {
  const std::string model = model_.string();
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--hosts", "a:b"}, "a:b"},
      {{"--mpi-ports", "abc"}, "abc"},
      {{"--network", "300.1.1.1/9"}, "300.1.1.1/9"},
      {{"--max-model-len", "1000000"}, "1000000"},
      {{"--speculative-tokens", "8", "--max-num-seqs", "4"}, "speculative_tokens 8"},
      {{"--listen", "0.0.0.0:0"}, "--insecure-listen"},
      {{"--http-listen", "0.0.0.0:0"}, "--insecure-listen"},
      {{"--served-model-name", "a\nb"}, "printable"}};
  for (const auto& [flags, message] : wrong) {
    SCOPED_TRACE(flags[0]);
    std::vector<std::string> arguments = {"serve", model};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    ExpectOneLine(RunLockstep(arguments), 2, HasSubstr(message));
  }
}

TEST_F(WrongUsageTest, EveryCommandHasHelp) {
  for (const char* command : {"serve", "controller", "worker", "generate", "gateway", "bench",
                              "status", "tokenize", "model"}) {
    const Finished finished = RunLockstep({command, "--help"});
    EXPECT_EQ(finished.code, 0);
    EXPECT_THAT(finished.out, HasSubstr("Usage: lockstep "));
  }
  EXPECT_THAT(RunLockstep({"--version"}).out, StartsWith("lockstep "));
}

TEST_F(WrongUsageTest, AMissingModelIsNamed) {
  ExpectOneLine(RunLockstep({"serve", (scratch_ / "nothing").string()}), 1,
                HasSubstr((scratch_ / "nothing").string()));
}

TEST_F(WrongUsageTest, ATruncatedCheckpointIsRefused) {
  SKIP_WITHOUT_ASSET(model_)
  fs::copy(model_, scratch_ / "cut", fs::copy_options::recursive);
  const fs::path weights = scratch_ / "cut/model.safetensors";
  fs::permissions(weights, fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(weights, fs::file_size(weights) - 100);
  ExpectOneLine(RunLockstep({"serve", (scratch_ / "cut").string()}), 1,
                HasSubstr("model.safetensors"));
  std::ofstream(weights) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  ExpectOneLine(RunLockstep({"serve", (scratch_ / "cut").string()}), 1, HasSubstr("git lfs pull"));
}

// Scripts go on with what inspect finds good.
TEST_F(WrongUsageTest, WhatCannotBeServedIsInspectedWithAnExitCode) {
  SKIP_WITHOUT_ASSET(model_)
  fs::copy(model_, scratch_ / "deep", fs::copy_options::recursive);
  EXPECT_EQ(RunLockstep({"model", "inspect", (scratch_ / "deep").string()}).code, 0);
  EditConfig(scratch_ / "deep", "num_hidden_layers", 6);
  const Finished finished = RunLockstep({"model", "inspect", (scratch_ / "deep").string()});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.out, HasSubstr("cannot be served"));
}

TEST_F(WrongUsageTest, ALayoutThatDoesNotDivideNamesTheNumbers) {
  SKIP_WITHOUT_ASSET(model_)
  ExpectOneLine(RunLockstep({"serve", model_.string(), "--tp", "3"}), 2,
                AllOf(HasSubstr("3"), HasSubstr("8")));
  ExpectOneLine(RunLockstep({"serve", model_.string(), "--pp", "6"}), 2,
                AllOf(HasSubstr("6"), HasSubstr("5")));
}

TEST_F(WrongUsageTest, AModelWithoutRoomForAnOutputIsRefused) {
  SKIP_WITHOUT_ASSET(model_)
  fs::copy(model_, scratch_ / "short", fs::copy_options::recursive);
  EditConfig(scratch_ / "short", "max_position_embeddings", 1);
  const std::string model = (scratch_ / "short").string();
  const auto why = AllOf(HasSubstr("max_position_embeddings 1"), HasSubstr("at least 2"));
  ExpectOneLine(RunLockstep({"serve", model}), 1, why);
  ExpectOneLine(RunLockstep({"controller", model, "--secret-file", (scratch_ / "secret").string()}),
                1, why);
}

TEST_F(WrongUsageTest, AModelThatHasMoreLayersThanItsConfigSaysIsRefused) {
  SKIP_WITHOUT_ASSET(model_)
  fs::copy(model_, scratch_ / "four", fs::copy_options::recursive);
  EditConfig(scratch_ / "four", "num_hidden_layers", 4);
  ExpectOneLine(RunLockstep({"serve", (scratch_ / "four").string()}), 1,
                HasSubstr("is of layer 4, but config.json says num_hidden_layers: 4"));
}

TEST_F(WrongUsageTest, ABusyPortIsNamed) {
  SKIP_WITHOUT_ASSET(model_)
  Server server({"serve", model_.string(), "--num-kv-blocks", "64"});
  server.WaitReady();
  ASSERT_FALSE(server.address().empty());
  ExpectOneLine(RunLockstep({"serve", model_.string(), "--listen", server.address()}), 1,
                HasSubstr(server.address()));
}

TEST_F(WrongUsageTest, ASlurmWithoutPmixIsRefusedAtOnceAndByItsName) {
  SKIP_WITHOUT_ASSET(model_)
  const fs::path srun = scratch_ / "srun";
  std::ofstream(srun) << "#!/bin/sh\necho \"srun: error: Invalid MPI type 'pmix'\" >&2\nexit 1\n";
  fs::permissions(srun, fs::perms::owner_exec, fs::perm_options::add);
  Process serve({LockstepBinary(), "serve", model_.string(), "--num-kv-blocks", "64", "--listen",
                 "127.0.0.1:0"},
                {{"SLURM_JOB_ID", "17"},
                 {"SLURM_JOB_NODELIST", SystemHostName()},
                 {"SLURM_TASKS_PER_NODE", "1"},
                 {"PATH", absl::StrCat(scratch_.path().string(), ":", std::getenv("PATH"))}});
  EXPECT_EQ(serve.Wait(kPatience), 1);
  EXPECT_THAT(serve.out(), Not(HasSubstr("Restart")));
  EXPECT_THAT(serve.err(),
              AllOf(HasSubstr("[srun] srun: error: Invalid MPI type"),
                    HasSubstr("lockstep serve: srun cannot start ranks: this Slurm has "
                              "no PMIx; give --hosts A:8,B:8 instead")));
}

TEST_F(WrongUsageTest, AServerInTheEnvironmentIsNotGivenToAnEvalOfAModel) {
  Process eval({LockstepBinary(), "eval", (scratch_ / "nothing").string()},
               {{"LOCKSTEP_SERVER", "127.0.0.1:1"}});
  EXPECT_EQ(eval.Wait(kPatience), 1);
  EXPECT_THAT(eval.err(), HasSubstr((scratch_ / "nothing").string()));
}

TEST_F(WrongUsageTest, AClientWithoutAServerSaysHowToStartOne) {
  ExpectOneLine(RunLockstep({"generate", "--server", "127.0.0.1:1", "hi"}), 1,
                HasSubstr("lockstep serve MODEL"));
}

TEST_F(WrongUsageTest, ACacheThatDoesNotFitIsRefusedWithTheNumbers) {
  SKIP_WITHOUT_ASSET(model_)
  ExpectOneLine(RunLockstep({"serve", model_.string(), "--kv-cache-gib", "900000"}), 1,
                HasSubstr("lower --kv-cache-gib"));
}

}  // namespace
}  // namespace lockstep::testing
