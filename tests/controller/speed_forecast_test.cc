#include "runtime/controller/speed_forecast.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

v1::GetStatusResponse ServedBy(double mean_requests) {
  v1::GetStatusResponse status;
  status.mutable_served()->set_num_outputs(9);
  status.mutable_served()->set_mean_prompt_tokens(100);
  status.mutable_served()->set_mean_output_tokens(50);
  status.mutable_served()->set_mean_requests(mean_requests);
  return status;
}

// What is told at once.
std::optional<v1::ServedLoad> Ask(SpeedForecast& forecast, double mean_requests) {
  struct Answer {
    std::mutex mutex;
    std::optional<v1::ServedLoad> told;
  };
  const auto answer = std::make_shared<Answer>();  // which may come later, from another thread
  forecast.Complete(ServedBy(mean_requests), [answer](const v1::GetStatusResponse& status) {
    std::lock_guard lock(answer->mutex);
    answer->told = status.served();
  });
  std::lock_guard lock(answer->mutex);
  return answer->told;
}

TEST(SpeedForecastTest, WithoutAProfileOrALoadThereIsNone) {
  SpeedForecast none(nullptr);
  EXPECT_FALSE(Ask(none, 3).value().has_predicted_ttft_ms());
  SpeedForecast unused([](const ServedLoad&) -> std::optional<SpeedPrediction> {
    ADD_FAILURE() << "nothing was served";
    return std::nullopt;
  });
  bool is_told = false;
  unused.Complete({}, [&](const v1::GetStatusResponse& status) {
    is_told = !status.served().has_predicted_ttft_ms();
  });
  EXPECT_TRUE(is_told);
}

TEST(SpeedForecastTest, OneAskerWaitsForItAndNobodyElse) {
  absl::Notification may_end;
  std::atomic<int> num_predicted = 0;
  SpeedForecast forecast([&](const ServedLoad& load) -> std::optional<SpeedPrediction> {
    may_end.WaitForNotification();
    ++num_predicted;
    return SpeedPrediction{10 * load.mean_requests, load.mean_prompt_tokens, "a profile"};
  });
  absl::Notification is_told;
  v1::ServedLoad told;
  forecast.Complete(ServedBy(3), [&](const v1::GetStatusResponse& status) {
    told = status.served();
    is_told.Notify();
  });
  EXPECT_FALSE(is_told.HasBeenNotified());
  const std::optional<v1::ServedLoad> meanwhile = Ask(forecast, 3);
  EXPECT_TRUE(meanwhile && !meanwhile->has_predicted_ttft_ms());
  may_end.Notify();
  is_told.WaitForNotification();
  EXPECT_EQ(told.predicted_ttft_ms(), 30);
  EXPECT_EQ(told.predicted_tpot_ms(), 100);
  EXPECT_EQ(told.prediction_source(), "a profile");
  // Of loads that hardly differ it stays true.
  EXPECT_EQ(Ask(forecast, 3.05).value().predicted_ttft_ms(), 30);
  EXPECT_EQ(num_predicted, 1);
}

TEST(SpeedForecastTest, AnotherLoadIsLookedAtAfterAWhile) {
  std::atomic<int> num_predicted = 0;
  SpeedForecast forecast([&](const ServedLoad& load) -> std::optional<SpeedPrediction> {
    ++num_predicted;
    return SpeedPrediction{10 * load.mean_requests, 1, ""};
  });
  Ask(forecast, 1);
  std::optional<v1::ServedLoad> told;
  while (num_predicted < 2 || !told || told->predicted_ttft_ms() != 50) {
    told = Ask(forecast, 5);
    std::this_thread::yield();
  }
  EXPECT_EQ(num_predicted, 2);
}

}  // namespace
}  // namespace lockstep
