// TLS, certificates and tokens between the program's own commands.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/lockstep_process.h"
#include "tests/support/assets.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    authority_ = std::make_unique<TestAuthority>(scratch_.path(), "ca");
    server_ = authority_->Issue("server");
    token_file_ = (scratch_ / "token").string();
    WriteFile(token_file_, "# tests\ntoken-0123456789abcdef\n", 0600);
  }
  void SetUp() override{SKIP_WITHOUT_ASSET(model_)}

  std::vector<std::string> Serve(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"serve", model_.string(), "--num-kv-blocks", "64"});
    return flags;
  }
  static Finished Generate(const Server& server, std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"generate", "Once upon a time", "--temperature", "0",
                                 "--max-tokens", "8", "--server", server.address()});
    return RunLockstep(flags);
  }
  static void ExpectStory(const Finished& finished) {
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_THAT(finished.out, StartsWith("Once upon a time, there was"));
  }
  static void ExpectRefused(const Finished& finished, const std::string& message) {
    EXPECT_NE(finished.code, 0);
    EXPECT_THAT(finished.err, AllOf(StartsWith("lockstep"), HasSubstr(message)));
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
  }

  const TempDirectory scratch_;
  std::unique_ptr<TestAuthority> authority_;
  TlsFiles server_;
  std::string token_file_;
  const fs::path model_ = SharedAssets() / "models" / "stories260K";
};

TEST_F(SecurityTest, ClientsNeedTheAuthorityTheirCertificateAndAToken) {
  Server server(Serve({"--tls-cert", server_.certificate, "--tls-key", server_.key,
                       "--tls-client-ca", authority_->file(), "--api-token-file", token_file_}));
  server.WaitReady();
  const TlsFiles client = authority_->Issue("client");
  const std::vector<std::string> tls = {"--tls-ca",         authority_->file(), "--tls-cert",
                                        client.certificate, "--tls-key",        client.key};
  std::vector<std::string> all = tls;
  all.insert(all.end(), {"--token-file", token_file_});
  ExpectStory(Generate(server, all));
  ExpectRefused(Generate(server, tls), "token");
  ExpectRefused(Generate(server, {"--tls-ca", authority_->file()}), "certificate");
  ExpectRefused(Generate(server, {}), "TLS");
  const TestAuthority stranger(scratch_.path(), "stranger");
  ExpectRefused(Generate(server, {"--tls-ca", stranger.file()}), "not signed by");
  WriteFile(scratch_ / "wrong", "another-token-0123456789", 0600);
  all.back() = (scratch_ / "wrong").string();
  ExpectRefused(Generate(server, all), "not one of its tokens");
}

TEST_F(SecurityTest, RanksPlacedByHandShowCertificates) {
  const std::string secret_file = (scratch_ / "secret").string();
  Server controller({"controller", model_.string(), "--worker-listen", "127.0.0.1:0",
                     "--secret-file", secret_file, "--worker-tls-cert", server_.certificate,
                     "--worker-tls-key", server_.key, "--worker-tls-ca", authority_->file()});
  const json waiting = controller.WaitEvent("waiting");
  ASSERT_FALSE(waiting.is_null());
  const TlsFiles rank = authority_->Issue("rank");
  const auto ranks = StartRanks(
      1, scratch_.path(),
      {LockstepBinary(), "worker", model_.string(), "--controller", waiting["worker_address"],
       "--secret-file", secret_file, "--num-kv-blocks", "64", "--threads-per-rank", "1",
       "--tls-cert", rank.certificate, "--tls-key", rank.key, "--tls-ca", authority_->file()});
  controller.WaitReady();
  ExpectStory(Generate(controller, {}));
  controller.process().Signal(SIGINT);
  EXPECT_EQ(controller.process().Wait(kPatience), 0);
  EXPECT_EQ(ranks->Wait(kPatience), 0) << ranks->err();
}

TEST_F(SecurityTest, WrongFilesAndOpenAddressesAreOneLine) {
  const std::vector<std::string> serve = {"serve", model_.string()};
  const auto run = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), serve.begin(), serve.end());
    return RunLockstep(flags);
  };
  fs::permissions(authority_->Issue("open").key, fs::perms::group_read | fs::perms::others_read,
                  fs::perm_options::add);
  const std::string open = (scratch_ / "open").string();
  ExpectRefused(run({"--tls-cert", open + ".pem", "--tls-key", open + ".key"}), "chmod 600");
  ExpectRefused(run({"--tls-cert", open + ".pem"}), "--tls-key");
  ExpectRefused(run({"--tls-cert", server_.certificate, "--tls-key", "/nowhere"}), "/nowhere");
  ExpectRefused(run({"--api-token-file", server_.certificate}), "chmod 600");
  ExpectRefused(run({"--listen", "0.0.0.0:0"}), "--insecure-listen");
  ExpectRefused(RunLockstep({"status", "--server", "192.0.2.1:1", "--token-file", token_file_}),
                "in clear");
}

}  // namespace
}  // namespace lockstep::testing
