#include "launcher/job/restart_policy.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr absl::Duration kFirstDelay = absl::Milliseconds(200);
constexpr absl::Duration kLongestDelay = absl::Seconds(10);

}  // namespace

std::optional<absl::Duration> RestartPolicy::OnLoss(absl::Time now, bool had_served) {
  while (!restarts_.empty() && restarts_.front() + limits_.window <= now) restarts_.pop_front();
  if (num_recent() >= limits_.max_restarts) return std::nullopt;
  restarts_.push_back(now);
  num_without_serving_ = had_served ? 0 : num_without_serving_ + 1;
  if (had_served) return absl::ZeroDuration();
  const int doublings = std::min(num_without_serving_ - 1, 10);
  return std::min(kFirstDelay * (int64_t{1} << doublings), kLongestDelay);
}

}  // namespace lockstep
