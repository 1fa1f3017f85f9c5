// What a server's health says over time.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

namespace lockstep::testing {

// Watches from construction to destruction, in a thread of its own.
class HealthWatch {
 public:
  explicit HealthWatch(const std::string& address);
  ~HealthWatch();

  // When it first said anything but SERVING after `begin`.
  std::optional<absl::Time> FirstNotServing(absl::Time begin) const;

 private:
  void Watch();

  const std::string address_;
  grpc::ClientContext context_;
  mutable std::mutex mutex_;
  std::vector<std::pair<absl::Time, bool>> serving_;
  std::thread watcher_;
};

}  // namespace lockstep::testing
