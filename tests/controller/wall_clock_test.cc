// A controller whose machine's clock is set while it runs.
#include "tests/support/wall_clock.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/steady_clock.h"
#include "tests/controller/controller_fixture.h"

namespace lockstep::testing {
namespace {

using ::testing::IsEmpty;

class WallClockTest : public ControllerTest {
 protected:
  ~WallClockTest() override { SetWallClockAhead(0); }
};

TEST_F(WallClockTest, SteadyTimesAreOfAnotherClock) {
  const absl::Time wall = absl::Now();
  const absl::Time steady = SteadyNow();
  SetWallClockAhead(1000);
  EXPECT_GE(absl::Now() - wall, absl::Seconds(1000));
  EXPECT_LT(SteadyNow() - steady, absl::Seconds(100));
  EXPECT_LT(SteadyTimeOf(absl::Now() + absl::Seconds(60)) - steady, absl::Seconds(160));
  EXPECT_EQ(SteadyTimeOf(absl::InfiniteFuture()), absl::InfiniteFuture());
}

TEST_F(WallClockTest, ClockThatIsSetEndsNeitherLeasesNorRequests) {
  ControllerOptions options = DefaultOptions();
  options.lease = absl::Seconds(600);
  Serve(std::move(options));
  for (const int64_t offset : {1000, -1000}) {
    OpenStream stream;
    stream.context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(600)));
    replica_->Hold();
    stream.reader = stub().Generate(&stream.context, Request("hello", 20));
    ASSERT_TRUE(Eventually([](const auto& status) { return status.num_running() == 1; }));
    SetWallClockAhead(offset);
    EXPECT_TRUE(Eventually([](const auto& status) { return status.num_running() == 1; }));
    replica_->Release();
    const Generated generated = ReadAll(*stream.reader);
    EXPECT_TRUE(generated.status.ok()) << generated.status.error_message();
    EXPECT_EQ(generated.outputs.at(0).ids,
              ExpectedIds(Request("hello", 20), generated.accepted->seed()));
  }
  EXPECT_THAT(Events(ControllerEvent::Kind::kRankLost), IsEmpty());
}

}  // namespace
}  // namespace lockstep::testing
