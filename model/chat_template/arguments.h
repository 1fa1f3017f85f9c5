// What a call passes, read one by one.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "model/chat_template/value.h"

namespace lockstep::jinja {

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

class ArgumentReader {
 public:
  explicit ArgumentReader(Arguments arguments) : arguments_(std::move(arguments)) {}

  // The next by position, else the one of that name, once.
  std::optional<Value> Next(const char* name);
  Value NextOr(const char* name, Value otherwise) {
    return Next(name).value_or(std::move(otherwise));
  }
  // INVALID_ARGUMENT for one of another type. None is absent.
  absl::StatusOr<std::optional<MarkedText>> NextText(const char* name);
  absl::StatusOr<std::optional<int64_t>> NextInt(const char* name);
  // INVALID_ARGUMENT when something is left that nobody asked for.
  absl::Status Finish() const;

  // All that is left, for another callee.
  Arguments TakeRest();

 private:
  Arguments arguments_;
  size_t num_taken_ = 0;
};

}  // namespace lockstep::jinja
