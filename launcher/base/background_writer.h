// Text to standard output or standard error that nobody waits for: a terminal that is held
// (Ctrl-S), a pager or a log driver that does not read stops what is printed, not who prints.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace lockstep {

class BackgroundWriter {
 public:
  static constexpr size_t kMostWaitingBytes = size_t{1} << 20;  // more is lost, and told of
  static constexpr absl::Duration kPatience = absl::Seconds(1);

  // fd: stays open as long as the process. on_loss hears why text is lost, once until some is
  // written again; on the writer's thread.
  BackgroundWriter(int fd, std::function<void(const std::string& why)> on_loss);
  ~BackgroundWriter();  // Flush
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  void Write(std::string text);
  // Waits until all is written or lost, at most kPatience.
  void Flush();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);
  const std::shared_ptr<State> state_;  // the thread's, too, which may outlive this
};

}  // namespace lockstep
