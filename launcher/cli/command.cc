#include "launcher/cli/command.h"

#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"

namespace lockstep {

CLI::Validator Between(double min, double max) {
  const auto check = [min, max](const std::string& text) -> std::string {
    double value = 0.0;
    // Written so that NaN is refused too.
    if (absl::SimpleAtod(text, &value) && value >= min && value <= max) return "";
    return absl::StrFormat("%s is not a number from %.15g to %.15g", text, min, max);
  };
  return CLI::Validator(check, "");
}

CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](const std::string& text) { return std::string(text.empty() ? "the value is empty" : ""); },
      "");
}

int Fail(absl::string_view command, const absl::Status& status) {
  std::fprintf(stderr, "lockstep %.*s: %s\n", static_cast<int>(command.size()), command.data(),
               OneLine(status.message()).c_str());
  return kExitFailure;
}

int FailUsage(absl::string_view command, absl::string_view message) {
  std::fprintf(stderr, "lockstep %.*s: %s (see: lockstep %.*s --help)\n",
               static_cast<int>(command.size()), command.data(), OneLine(message).c_str(),
               static_cast<int>(command.size()), command.data());
  return kExitUsage;
}

}  // namespace lockstep
