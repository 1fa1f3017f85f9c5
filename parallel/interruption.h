// What ends a group's waits before a peer has come: any thread raises it, or the group's own
// thread finds out while it waits.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

namespace lockstep {

class Interruption {
 public:
  // poll: true when the waits shall end. Null: only Raise does. Called by the group's thread.
  explicit Interruption(std::function<bool()> poll = nullptr) : poll_(std::move(poll)) {}

  // Any thread. For good.
  void Raise() { raised_.store(true, std::memory_order_relaxed); }
  // One load: for waits that spin.
  bool raised() const { return raised_.load(std::memory_order_relaxed); }
  // Between the pauses of a longer wait.
  bool Poll() {
    if (!raised() && poll_ != nullptr && poll_()) Raise();
    return raised();
  }

 private:
  std::atomic<bool> raised_{false};
  const std::function<bool()> poll_;
};

}  // namespace lockstep
