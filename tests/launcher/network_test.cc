#include "launcher/job/network.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(NetworkTest, LoopbackIsFoundByNameAndByNumber) {
  for (const char* network : {"lo", "127.0.0.0/8", "127.255.3.4/8", "127.0.0.1/32"}) {
    const auto address = AddressInNetwork(network);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(*address, "127.0.0.1");
  }
}

TEST(NetworkTest, InterfacesAreFoundByNameAndByNumber) {
  for (const char* network : {"lo", "127.0.0.0/8"}) {
    const auto interfaces = InterfacesInNetwork(network);
    ASSERT_TRUE(interfaces.ok()) << interfaces.status();
    EXPECT_EQ(*interfaces, std::vector<std::string>{"lo"}) << "IPv4 and IPv6 are one interface";
  }
}

TEST(NetworkTest, ANetworkElsewhereIsNotFound) {
  for (const char* network : {"203.0.113.0/24", "nosuchif0"}) {
    EXPECT_EQ(InterfacesInNetwork(network).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(AddressInNetwork(network).status().code(), absl::StatusCode::kNotFound) << network;
  }
}

TEST(NetworkTest, RubbishIsNamed) {
  for (const char* network :
       {"", "-x", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/0", "10.0.0/8", "/8", "a b", "eth0,eth1",
        "a name far too long", "10.0.0.0/8/8", "fe80::/10"}) {
    const absl::Status status = CheckNetwork(network);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << network;
    EXPECT_THAT(std::string(status.message()), HasSubstr(network));
  }
}

TEST(NetworkTest, ThisHostHasNoAddressTowardsItself) {
  for (const char* host : {"127.0.0.1", "localhost", "127.9.9.9"}) {
    const auto address = AddressTowards(host);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(*address, std::nullopt) << host;
  }
}

TEST(NetworkTest, AnUnknownHostIsNamed) {
  const auto address = AddressTowards("no..host");
  EXPECT_EQ(address.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(address.status().message()), HasSubstr("no..host"));
}

TEST(PortRangeTest, TakesRangesAndNamesRubbish) {
  EXPECT_EQ(ParsePortRange("20000-20031")->first, 20000);
  EXPECT_EQ(ParsePortRange("20000-20031")->last, 20031);
  for (const char* text : {"", "20000", "20000-", "-20000", "2-1", "1-70000", "1023-2000", "a-b",
                           "2000-3000-4000", "3000-2000"}) {
    EXPECT_FALSE(ParsePortRange(text).ok()) << text;
  }
}

}  // namespace
}  // namespace lockstep
