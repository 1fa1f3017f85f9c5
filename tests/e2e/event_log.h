// What `lockstep serve --json` printed, with the time at which each line was read.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/support/process.h"

namespace lockstep::testing {

// Reads in a thread of its own; the process must outlive it. Thread-safe.
class EventLog {
 public:
  struct Entry {
    absl::Time time;
    nlohmann::json event;
    std::string name() const { return event.value("event", ""); }
    uint64_t epoch() const { return event.value("epoch", uint64_t{0}); }
  };
  using Condition = std::function<bool(const Entry&)>;

  explicit EventLog(Process& process);
  ~EventLog();

  std::vector<Entry> entries() const;
  // The first entry that satisfies the condition; nullopt when the
  // time is over.
  std::optional<Entry> Wait(const Condition& condition, absl::Duration timeout) const;
  int Count(const std::string& name) const;

 private:
  void Follow();
  void Take(const std::string& out);

  Process& process_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  size_t taken_ = 0;  // bytes
  bool stop_ = false;
  std::thread follower_;
};

}  // namespace lockstep::testing
