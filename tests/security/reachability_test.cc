#include "runtime/security/reachability.h"

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
                              "[::ffff:192.0.2.1]:5", "128.0.0.1:5"}) {
    EXPECT_EQ(IsLocalAddress(address), false) << address;
  }
}

TEST(IsLocalAddress, AnUnknownHostIsNeither) {
  EXPECT_EQ(IsLocalAddress("no-such-host.invalid:5"), std::nullopt);
}

}  // namespace
}  // namespace lockstep
