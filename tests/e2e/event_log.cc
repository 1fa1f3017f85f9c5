#include "tests/e2e/event_log.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace lockstep::testing {

EventLog::EventLog(Process& process) : process_(process), follower_([this] { Follow(); }) {}

EventLog::~EventLog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  follower_.join();
}

void EventLog::Follow() {
  while (true) {
    std::string out;
    process_.WaitForOutput(
        [&](const std::string& now) {
          if (now.size() > taken_) out = now;
          return !out.empty();
        },
        absl::Milliseconds(20));
    {
      std::lock_guard lock(mutex_);
      if (!out.empty()) Take(out);
      if (stop_) return;
    }
    absl::SleepFor(absl::Milliseconds(1));  // the wait returns at once when the process has ended
  }
}

void EventLog::Take(const std::string& out) {
  const absl::Time now = absl::Now();
  size_t end = 0;
  while ((end = out.find('\n', taken_)) != std::string::npos) {
    nlohmann::json event = nlohmann::json::parse(out.substr(taken_, end - taken_), nullptr, false);
    if (event.is_object()) entries_.push_back({now, std::move(event)});
    taken_ = end + 1;
  }
}

std::vector<EventLog::Entry> EventLog::entries() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

std::optional<EventLog::Entry> EventLog::Wait(const Condition& condition,
                                              absl::Duration timeout) const {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    {
      std::lock_guard lock(mutex_);
      const auto found = std::find_if(entries_.begin(), entries_.end(), condition);
      if (found != entries_.end()) return *found;
    }
    if (absl::Now() >= deadline) return std::nullopt;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

int EventLog::Count(const std::string& name) const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(entries_.begin(), entries_.end(),
                                        [&](const Entry& entry) { return entry.name() == name; }));
}

}  // namespace lockstep::testing
