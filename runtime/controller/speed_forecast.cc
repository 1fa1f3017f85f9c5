#include "runtime/controller/speed_forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/steady_clock.h"

namespace lockstep {
namespace {

constexpr absl::Duration kShortestHold = absl::Seconds(1);
constexpr double kRest = 9.0;         // times what the last one took
constexpr double kLikeEnough = 0.02;  // of a load

ServedLoad LoadOf(const v1::ServedLoad& served) {
  ServedLoad load;
  load.num_outputs = served.num_outputs();
  load.mean_prompt_tokens = served.mean_prompt_tokens();
  load.mean_output_tokens = served.mean_output_tokens();
  load.mean_requests = served.mean_requests();
  return load;
}

bool AreAlike(double a, double b) { return std::abs(a - b) <= kLikeEnough * std::max(a, b); }

bool AreAlike(const ServedLoad& a, const ServedLoad& b) {
  return AreAlike(a.mean_prompt_tokens, b.mean_prompt_tokens) &&
         AreAlike(a.mean_output_tokens, b.mean_output_tokens) &&
         AreAlike(a.mean_requests, b.mean_requests);
}

void Fill(const std::optional<SpeedPrediction>& prediction, v1::ServedLoad& served) {
  if (!prediction) return;
  served.set_predicted_ttft_ms(prediction->ttft_ms);
  served.set_predicted_tpot_ms(prediction->tpot_ms);
  served.set_prediction_source(prediction->source);
}

}  // namespace

std::optional<SpeedForecast::Known> SpeedForecast::Look(const ServedLoad& load) {
  absl::MutexLock lock(&mutex_);
  const bool holds = known_ && (SteadyNow() < known_->holds_until || AreAlike(known_->load, load));
  if (holds) return known_;
  if (std::exchange(is_being_found_, true)) return known_.value_or(Known());
  return std::nullopt;
}

SpeedForecast::Known SpeedForecast::FindOut(const ServedLoad& load) {
  const absl::Time begin = SteadyNow();
  const std::optional<SpeedPrediction> prediction = predict_(load);
  const absl::Time end = SteadyNow();
  absl::MutexLock lock(&mutex_);
  is_being_found_ = false;
  known_ = Known{load, prediction, end + std::max(kShortestHold, kRest * (end - begin))};
  return *known_;
}

void SpeedForecast::Complete(v1::GetStatusResponse status, Done done) {
  const ServedLoad load = LoadOf(status.served());
  if (predict_ == nullptr || load.num_outputs == 0) return done(std::move(status));
  if (const std::optional<Known> known = Look(load)) {
    Fill(known->prediction, *status.mutable_served());
    return done(std::move(status));
  }
  thread_.Push([this, load, status = std::move(status), done = std::move(done)]() mutable {
    Fill(FindOut(load).prediction, *status.mutable_served());
    done(std::move(status));
  });
}

}  // namespace lockstep
