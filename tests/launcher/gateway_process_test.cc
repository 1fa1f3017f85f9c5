// Shell scripts stand for `lockstep gateway`.
#include "launcher/serving/gateway_process.h"

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/steady_clock.h"
#include "launcher/base/signals.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_directory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kGatewayPatience = absl::Seconds(20);
// What the real one says when it listens.
constexpr char kListens[] = R"(echo '{"event": "listening", "url": "https://[::1]:8123"}')";

class GatewayProcessTest : public ::testing::Test {
 protected:
  GatewayProcessTest() { ::testing::internal::CaptureStdout(); }
  ~GatewayProcessTest() override {
    gateway_.reset();
    if (is_captured_) ::testing::internal::GetCapturedStdout();
  }

  // The script can tell its starts apart: $start is 1, 2, ...
  void Start(const std::string& script) {
    GatewayLaunch launch;
    const std::filesystem::path program =
        scratch_.Write("gateway", absl::StrCat("#!/bin/sh\ncd ", scratch_.path().string(),
                                               "\necho \"$@\" >>commands\nenv >>environment\n"
                                               "start=$(wc -l <commands)\n",
                                               script, "\necho >>started\nexec sleep 60\n"));
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    launch.program = KeptFile::Keep(program, program, scratch_ / "link").value();
    launch.server = "unix:/run/gateway.socket";
    launch.http_listen = "[::1]:0";
    launch.tls = {.certificate = "S.pem", .key = "S.key", .authority = "CA.pem"};
    auto gateway = GatewayProcess::Start(launch, report_);
    ASSERT_TRUE(gateway.ok()) << gateway.status();
    gateway_ = *std::move(gateway);
  }

  // Steps as a session does, until so many starts came to their last line, or one failed.
  absl::Status StepUntilStarted(size_t num_starts) {
    const absl::Time deadline = SteadyNow() + kGatewayPatience;
    absl::Status status;
    while (status.ok() && Lines("started").size() < num_starts) {
      if (SteadyNow() >= deadline) return absl::DeadlineExceededError("too few starts");
      WaitReadable({gateway_->fd()},
                   std::min(gateway_->next_start() - SteadyNow(), absl::Milliseconds(20)));
      status = gateway_->Step();
    }
    return status.ok() ? gateway_->Step() : status;  // what they said until then
  }

  std::vector<std::string> Lines(const std::string& file) const {
    std::ifstream in(scratch_ / file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }
  std::vector<nlohmann::json> Events() {
    is_captured_ = false;
    report_.Flush();
    std::vector<nlohmann::json> events;
    for (const auto line :
         absl::StrSplit(::testing::internal::GetCapturedStdout(), '\n', absl::SkipEmpty())) {
      events.push_back(nlohmann::json::parse(line));
    }
    return events;
  }
  std::vector<std::string> Messages(const char* kind) {
    std::vector<std::string> messages;
    for (const auto& event : Events()) {
      if (event["event"] == kind) messages.push_back(event.value("message", ""));
    }
    return messages;
  }

  testing::TempDirectory scratch_;
  bool is_captured_ = true;
  ServeReport report_{/*json=*/true, ModelFlags(), /*num_replicas=*/1};
  std::unique_ptr<GatewayProcess> gateway_;
};

TEST_F(GatewayProcessTest, OneThatEndsStartsAgainWhereItListened) {
  Start(absl::StrCat(kListens, "; [ $start = 1 ] && { echo >>started; kill -SEGV $$; }"));
  ASSERT_TRUE(StepUntilStarted(2).ok());
  EXPECT_THAT(Lines("commands"),
              ElementsAre(AllOf(HasSubstr("gateway --json --server unix:/run/gateway.socket"),
                                HasSubstr("--listen [::1]:0 ")),
                          HasSubstr("--listen [::1]:8123 ")));
  EXPECT_THAT(Lines("commands"),
              Each(HasSubstr("--https-cert S.pem --https-key S.key --https-client-ca CA.pem")));
  EXPECT_THAT(Messages("warning"), ElementsAre(HasSubstr("signal 11 (Segmentation fault)")));
}

TEST_F(GatewayProcessTest, OneThatNeverListenedIsAnErrorInItsOwnWords) {
  Start("echo 'lockstep gateway: cannot listen on [::1]:80: Permission denied' >&2; exit 1");
  EXPECT_EQ(StepUntilStarted(1),
            absl::UnavailableError("the gateway: cannot listen on [::1]:80: Permission denied"));
}

TEST_F(GatewayProcessTest, OneThatIsKilledBeforeItListensStartsAgain) {
  Start(absl::StrCat("[ $start = 1 ] && { echo >>started; kill -KILL $$; }; ", kListens));
  ASSERT_TRUE(StepUntilStarted(2).ok());
  EXPECT_THAT(Messages("warning"), ElementsAre(HasSubstr("signal 9 (Killed)")));
}

TEST_F(GatewayProcessTest, OneThatCannotListenAgainIsTriedAgainLater) {
  Start(absl::StrCat("[ $start = 2 ] && { echo 'lockstep gateway: no room' >&2; exit 1; }; ",
                     kListens, "; [ $start = 1 ] && exit 0"));
  ASSERT_TRUE(StepUntilStarted(1).ok());
  EXPECT_THAT(Messages("warning"),
              ElementsAre(AllOf(HasSubstr("exit code 0"), HasSubstr("starts again")),
                          AllOf(HasSubstr("no room"), HasSubstr("starts again in "))));
}

TEST_F(GatewayProcessTest, ItsUsersOwnTokensAndCertificatesAreNotForStrangers) {
  const char* const kHeld[] = {"LOCKSTEP_TOKEN_FILE", "LOCKSTEP_TLS_CA", "LOCKSTEP_TLS_CERT",
                               "LOCKSTEP_TLS_KEY", "LOCKSTEP_SERVER"};
  for (const char* name : kHeld) ::setenv(name, "x", 1);
  Start(kListens);
  for (const char* name : kHeld) ::unsetenv(name);
  ASSERT_TRUE(StepUntilStarted(1).ok());
  EXPECT_THAT(Lines("environment"), Not(IsEmpty()));
  for (const char* name : kHeld) {
    EXPECT_THAT(Lines("environment"), Not(Contains(absl::StrCat(name, "=x"))));
  }
}

TEST_F(GatewayProcessTest, WhatItWarnsOfIsAWarning) {
  Start(absl::StrCat("echo 'Warning  prompts cross the network' >&2; ", kListens));
  ASSERT_TRUE(StepUntilStarted(1).ok());
  EXPECT_THAT(Messages("warning"), ElementsAre("gateway: prompts cross the network"));
}

}  // namespace
}  // namespace lockstep
