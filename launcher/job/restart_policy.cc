#include "launcher/job/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

constexpr absl::Duration kFirstDelay = absl::Milliseconds(200);
constexpr absl::Duration kLongestDelay = absl::Seconds(10);

}  // namespace

std::optional<absl::Duration> RestartPolicy::OnLoss(absl::Time now, bool had_served) {
  while (!restarts_.empty() && restarts_.front() + limits_.window <= now) restarts_.pop_front();
  num_without_serving_ = had_served ? 0 : num_without_serving_ + 1;
  if (num_recent() >= limits_.max_restarts) return std::nullopt;
  if (num_without_serving_ > limits_.max_restarts) return std::nullopt;
  restarts_.push_back(now);
  if (had_served) return absl::ZeroDuration();
  const int doublings = std::min(num_without_serving_ - 1, 10);
  return std::min(kFirstDelay * (int64_t{1} << doublings), kLongestDelay);
}

std::string RestartPolicy::Exhausted() const {
  if (num_without_serving_ > limits_.max_restarts) {
    return absl::StrCat(num_without_serving_, " starts in a row did not come to serve");
  }
  return absl::StrCat(limits_.max_restarts, " restarts within ",
                      absl::FormatDuration(limits_.window));
}

}  // namespace lockstep
