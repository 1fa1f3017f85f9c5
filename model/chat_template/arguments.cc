#include "model/chat_template/arguments.h"

#include <algorithm>

namespace lockstep::jinja {

std::optional<Value> ArgumentReader::Next(const char* name) {
  if (num_taken_ < arguments_.positional.size()) return arguments_.positional[num_taken_++];
  const auto found = std::find_if(arguments_.named.begin(), arguments_.named.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == arguments_.named.end()) return std::nullopt;
  Value value = std::move(found->second);
  arguments_.named.erase(found);
  return value;
}

absl::StatusOr<std::optional<MarkedText>> ArgumentReader::NextText(const char* name) {
  const std::optional<Value> value = Next(name);
  if (!value || value->is_none()) return std::nullopt;
  if (value->is_text()) return *value->text();
  return absl::InvalidArgumentError(
      absl::StrCat("argument ", name, " must be a string, not ", value->TypeName()));
}

absl::StatusOr<std::optional<int64_t>> ArgumentReader::NextInt(const char* name) {
  const std::optional<Value> value = Next(name);
  if (!value || value->is_none()) return std::nullopt;
  if (value->is_int() || value->is_bool()) return value->AsInt();
  return absl::InvalidArgumentError(
      absl::StrCat("argument ", name, " must be an integer, not ", value->TypeName()));
}

absl::Status ArgumentReader::Finish() const {
  if (num_taken_ < arguments_.positional.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("takes ", num_taken_, " arguments, not ", arguments_.positional.size()));
  }
  if (arguments_.named.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has no argument ", arguments_.named.front().first));
}

Arguments ArgumentReader::TakeRest() {
  Arguments rest = std::move(arguments_);
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<ptrdiff_t>(num_taken_));
  return rest;
}

}  // namespace lockstep::jinja
