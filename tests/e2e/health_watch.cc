#include "tests/e2e/health_watch.h"

#include "absl/time/clock.h"
#include "lockstep/v1/health.grpc.pb.h"

namespace lockstep::testing {

namespace health = grpc::health::v1;

HealthWatch::HealthWatch(const std::string& address)
    : address_(address), watcher_([this] { Watch(); }) {}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  watcher_.join();
}

void HealthWatch::Watch() {
  const auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  const auto stub = health::Health::NewStub(channel);
  const auto reader = stub->Watch(&context_, health::HealthCheckRequest());
  health::HealthCheckResponse response;
  while (reader->Read(&response)) {
    std::lock_guard lock(mutex_);
    serving_.emplace_back(absl::Now(), response.status() == health::HealthCheckResponse::SERVING);
  }
}

std::optional<absl::Time> HealthWatch::FirstNotServing(absl::Time begin) const {
  std::lock_guard lock(mutex_);
  for (const auto& [time, serving] : serving_) {
    if (time >= begin && !serving) return time;
  }
  return std::nullopt;
}

}  // namespace lockstep::testing
