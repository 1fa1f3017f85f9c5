// Who asked the gateway for what, and what came of it: a line of JSON for each HTTP request, when
// it has been answered. No prompts, texts or tokens. The exchanges' thread alone.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/fd.h"
#include "nlohmann/json.hpp"

namespace lockstep {

class AccessLog {
 public:
  // Appends to the file, which is made for its owner and group (0640) if it is not there. Each line
  // is one write: others may append to it, or cut it off at any time. Errors name the file.
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path);

  // What cannot be written is lost, which is told on stderr until it can be again.
  void Write(const nlohmann::ordered_json& entry);

 private:
  AccessLog(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  const std::string path_;
  const Fd fd_;
  int64_t num_lost_ = 0;  // since the last that was written
  bool is_torn_ = false;  // the file ends in the middle of a line
};

}  // namespace lockstep
