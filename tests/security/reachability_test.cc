#include "runtime/security/reachability.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

TEST(IsLocalAddress, LoopbackAndUnixSocketsAreLocal) {
  for (const char* address : {"127.0.0.1:1", "127.9.9.9:0", "[::1]:5", "localhost:5", "unix:/x",
                              "[::ffff:127.0.0.1]:5"}) {
    EXPECT_EQ(IsLocalAddress(address), true) << address;
  }
}

TEST(IsLocalAddress, OthersAndWildcardsAreNot) {
  for (const char* address : {"0.0.0.0:1", "[::]:1", "192.0.2.1:5", "[2001:db8::1]:5",
                              "[::ffff:192.0.2.1]:5", "128.0.0.1:5", "*:5", "0:5", "0x0:5"}) {
    EXPECT_EQ(IsLocalAddress(address), false) << address;
  }
}

TEST(IsLocalAddress, AnUnknownHostIsNeither) {
  EXPECT_EQ(IsLocalAddress("no-such-host.invalid:5"), std::nullopt);
}

TEST(CheckExposure, WhatOthersReachInClearMustBePermitted) {
  Exposure exposure{.flag = "--here", .address = "0.0.0.0:7", .tls_flags = "--cert and --key"};
  const absl::Status refused = CheckExposure(exposure);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  for (const char* part : {"--here 0.0.0.0:7", "--cert and --key", "--insecure-listen"}) {
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(part));
  }
  exposure.address = "*:7";
  EXPECT_FALSE(CheckExposure(exposure).ok());
  exposure.address = "no-such-host.invalid:7";
  EXPECT_TRUE(absl::IsUnavailable(CheckExposure(exposure)));
  EXPECT_THAT(std::string(CheckExposure(exposure).message()),
              ::testing::HasSubstr("--here \"no-such-host.invalid:7\": no such host"));
  exposure.is_permitted = true;
  EXPECT_TRUE(CheckExposure(exposure).ok());
}

TEST(CheckExposure, WhatOnlyThisMachineReachesMayBeInClear) {
  for (const char* address : {"127.0.0.1:7", "[::1]:7"}) {
    EXPECT_TRUE(CheckExposure({.flag = "", .address = address, .tls_flags = ""}).ok()) << address;
  }
}

}  // namespace
}  // namespace lockstep
