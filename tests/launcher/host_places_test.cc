#include "launcher/cli/host_places.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(HostPlacesTest, TravelAsText) {
  const std::vector<HostPlace> places = {{2, 4}, {3, 4}, {0, 1}};
  EXPECT_EQ(FormatHostPlaces(places), "2/4,3/4,0/1");
  const auto parsed = ParseHostPlaces("2/4,3/4,0/1", 3);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->size(), 3u);
  EXPECT_EQ((*parsed)[1].place, 3);
  EXPECT_EQ((*parsed)[1].num_ranks, 4);
  EXPECT_EQ((*parsed)[2].num_ranks, 1);
}

TEST(HostPlacesTest, OthersAreRefused) {
  for (const char* text : {"", "1", "1/", "/1", "1/1", "-1/2", "0/0", "a/2", "0/1/2", "0/99999999",
                           "0/99999999999999999999", "0/1,"}) {
    EXPECT_THAT(std::string(ParseHostPlaces(text, 1).status().message()),
                HasSubstr("is not PLACE/RANKS"))
        << text;
  }
  EXPECT_THAT(std::string(ParseHostPlaces("0/1", 2).status().message()),
              HasSubstr("has 1 places, the job 2 ranks"));
}

}  // namespace
}  // namespace lockstep
