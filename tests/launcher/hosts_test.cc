#include "launcher/job/hosts.h"

#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Shown(const absl::StatusOr<std::vector<HostSlots>>& hosts) {
  if (!hosts.ok()) return std::string(hosts.status().message());
  return absl::StrJoin(*hosts, " ", [](std::string* out, const HostSlots& host) {
    absl::StrAppend(out, host.name, "=", host.slots);
  });
}

TEST(HostListTest, TakesNamesWithAndWithoutSlots) {
  EXPECT_EQ(Shown(ParseHostList("a:8,b:8")), "a=8 b=8");
  EXPECT_EQ(Shown(ParseHostList("node-1.rack_2, 10.0.0.7:2,a,a")),
            "node-1.rack_2=1 10.0.0.7=2 a=1 a=1");
}

TEST(HostListTest, RubbishIsNamed) {
  for (const char* text : {"", ",", "a,,b", ":8", "a:", "a:0", "a:-1", "a:65537", "a:8:8", "a b",
                           "-oProxyCommand=x", "a;b", "root@a", "a/b", "a:8x", "\xff"}) {
    const auto hosts = ParseHostList(text);
    EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(Shown(hosts), HasSubstr("is not a host")) << text;
  }
  EXPECT_FALSE(ParseHostList(std::string(256, 'a')).ok());
  EXPECT_LT(Shown(ParseHostList(std::string(100000, '*'))).size(), 300u);
}

TEST(HostfileTest, TakesOpenMpisSyntax) {
  EXPECT_EQ(Shown(ParseHostfile("# all of them\n"
                                "a slots=8  # the first\n"
                                "\n"
                                "\tb slots = 4 max_slots=8\r\n"
                                "c:2\n"
                                "d max-slots=3\n"
                                "d",
                                "f")),
            "a=8 b=4 c=2 d=1 d=1");
}

TEST(HostfileTest, RubbishIsNamedWithItsLine) {
  for (const char* content : {"a\nb slots=x", "a\nb slots=", "a\nb slots=0", "a\nb slots",
                              "a\nb cores=8", "a\nb 8", "a\nslots=8", "a\nb c", "a\n= 8"}) {
    const std::string message = Shown(ParseHostfile(content, "my_hosts"));
    EXPECT_THAT(message, HasSubstr("my_hosts, line 2: ")) << content;
  }
  for (const char* content : {"", "\n\n", "# nothing\n", "   # a slots=2"}) {
    EXPECT_EQ(Shown(ParseHostfile(content, "my_hosts")), "my_hosts names no host");
  }
}

TEST(HostfileTest, IsReadFromAFile) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/hosts_", ::getpid());
  std::ofstream(path) << "a slots=2\nb\n";
  EXPECT_EQ(Shown(ReadHostfile(path)), "a=2 b=1");
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_THAT(Shown(ReadHostfile(path)), HasSubstr("names no host"));
  ::unlink(path.c_str());
  EXPECT_THAT(Shown(ReadHostfile(path)), HasSubstr(path));
  EXPECT_THAT(Shown(ReadHostfile("/tmp")), HasSubstr("host file: cannot read /tmp"));
  EXPECT_THAT(Shown(ReadHostfile("/dev/zero")), HasSubstr("more than 16777216 bytes"));
}

TEST(SlurmHostsTest, ExpandsListsAndCounts) {
  EXPECT_EQ(Shown(ParseSlurmHosts("n1", "4")), "n1=4");
  EXPECT_EQ(Shown(ParseSlurmHosts("n[1-2]", "8(x2)")), "n1=8 n2=8");
  EXPECT_EQ(Shown(ParseSlurmHosts("n[08-10,12],login", "2(x3),1,3")),
            "n08=2 n09=2 n10=2 n12=1 login=3");
  EXPECT_EQ(Shown(ParseSlurmHosts("r[1-2]n[1,3]x", "1(x4)")), "r1n1x=1 r1n3x=1 r2n1x=1 r2n3x=1");
}

TEST(SlurmHostsTest, RubbishIsAnError) {
  for (const char* list : {"", "n[1-", "n[", "n[2-1]", "n[a]", "n[1-2-3]", "n[]", ",", "n]", "-x",
                           "n[1-4000000000]", "n[0-65535]m[0-65535]", "n[-1]", "n[[1]]"}) {
    EXPECT_FALSE(ParseSlurmHosts(list, "1").ok()) << list;
  }
  for (const char* counts :
       {"", "x", "0", "2(x", "2(x0)", "2(x2)(x2)", "1,1", "2(x99999999)", "-1"}) {
    EXPECT_FALSE(ParseSlurmHosts("n1", counts).ok()) << counts;
  }
}

TEST(PlaceRanksTest, FillsSlotsInOrder) {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 1}, {"a", 3}};
  EXPECT_THAT(*PlaceRanks(hosts, 5), ElementsAre("a", "a", "b", "a", "a"));
  EXPECT_THAT(*PlaceRanks(hosts, 1), ElementsAre("a"));
}

TEST(PlaceRanksTest, TooFewSlotsNameBothNumbers) {
  const auto placed = PlaceRanks(std::vector<HostSlots>{{"a", 2}, {"b", 1}}, 4);
  EXPECT_EQ(placed.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(placed.status().message()), HasSubstr("4 ranks"));
  EXPECT_THAT(std::string(placed.status().message()), HasSubstr("have 3"));
}

}  // namespace
}  // namespace lockstep
