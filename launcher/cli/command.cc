#include "launcher/cli/command.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/values.h"

namespace lockstep {

namespace {

// Any number that is less than CLI11's "unlimited".
constexpr int kManyArguments = CLI::detail::expected_max_vector_size / 2;

// Of "--flag=value" or "--flag"; null when the command has no such flag.
const CLI::Option* FindFlag(const CLI::App& command, const std::string& argument) {
  if (!argument.starts_with("--")) return nullptr;
  return command.get_option_no_throw(argument.substr(0, argument.find('=')));
}

const CLI::App* FindSubcommand(const CLI::App& command, const std::string& name) {
  const auto found = command.get_subcommands(
      [&](const CLI::App* subcommand) { return subcommand->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

// 010 and 0x10, which are 8 and 16 to CLI11.
bool HasLeadingZero(absl::string_view number) {
  if (absl::StartsWith(number, "-") || absl::StartsWith(number, "+")) number.remove_prefix(1);
  return number.size() > 1 && number[0] == '0' && absl::ascii_isalnum(number[1]);
}

constexpr absl::string_view kUsagePayload = "lockstep/usage";

// Of a parser that returns a StatusOr.
template <typename Parse>
CLI::Validator Parsed(Parse parse) {
  return CLI::Validator(
      [parse](const std::string& text) { return std::string(parse(text).status().message()); }, "");
}

}  // namespace

CLI::Option* AddTexts(CLI::App& command, const std::string& name, std::vector<std::string>& texts,
                      const std::string& description) {
  const CLI::callback_t take = [&texts](const CLI::results_t& values) {
    texts = values;
    return true;
  };
  CLI::Option* option = command.add_option(name, take, description);
  option->take_all();  // one argument each time, and no extra ones: those CLI11 splits
  if (name.starts_with("-")) return option;
  // Positional arguments CLI11 takes while there are fewer than expected at least; it asks for that
  // many only of options that are required.
  return option->expected(kManyArguments, CLI::detail::expected_max_vector_size);
}

std::vector<std::string> ArgumentsForParse(const CLI::App& program, int argc,
                                           const char* const* argv) {
  const CLI::App* command = &program;
  std::vector<std::string> arguments;
  bool is_value = false;  // of the flag before
  bool are_positional = false;
  for (int i = 1; i < argc; ++i) {
    arguments.emplace_back(argv[i]);
    std::string& argument = arguments.back();
    if (are_positional || std::exchange(is_value, false)) continue;
    are_positional = argument == "--";
    if (const CLI::App* subcommand = FindSubcommand(*command, argument)) command = subcommand;
    const CLI::Option* flag = FindFlag(*command, argument);
    if (flag == nullptr || flag->get_items_expected_min() == 0) continue;
    const size_t equals = argument.find('=');
    is_value = equals == std::string::npos;
    if (is_value || equals + 1 < argument.size()) continue;
    argument.pop_back();
    arguments.emplace_back();
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

CLI::Validator Between(double min, double max) {
  const auto check = [min, max](const std::string& text) -> std::string {
    double value = 0.0;
    // Written so that NaN is refused too.
    const bool is_inside = absl::SimpleAtod(text, &value) && value >= min && value <= max;
    if (is_inside && !HasLeadingZero(text)) return "";
    return absl::StrFormat("%s is not a number from %.15g to %.15g%s", text, min, max,
                           is_inside ? ", without leading zeros" : "");
  };
  return CLI::Validator(check, "");
}

CLI::Validator Unsigned64() {
  const auto check = [](const std::string& text) -> std::string {
    uint64_t value = 0;
    if (absl::c_all_of(text, absl::ascii_isdigit) && absl::SimpleAtoi(text, &value) &&
        !HasLeadingZero(text)) {
      return "";
    }
    return absl::StrFormat("'%s' is not a decimal number from 0 to %u, without leading zeros", text,
                           std::numeric_limits<uint64_t>::max());
  };
  return CLI::Validator(check, "");
}

void RefuseEmptyValues(CLI::App& command) {
  const CLI::Validator not_empty(
      [](const std::string& text) { return std::string(text.empty() ? "the value is empty" : ""); },
      "");
  for (CLI::Option* option : command.get_options()) {
    if (option->nonpositional() && option->get_items_expected_max() > 0) option->check(not_empty);
  }
  for (CLI::App* subcommand : command.get_subcommands(nullptr)) RefuseEmptyValues(*subcommand);
}

CLI::Validator HostAndPort() { return Parsed(&ParseHostPort); }

CLI::Validator LengthOrRange() { return Parsed(&ParseLengthRange); }

absl::Status UsageError(absl::Status status) {
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

absl::Status UsageErrorIfInvalid(absl::Status status) {
  return absl::IsInvalidArgument(status) ? UsageError(std::move(status)) : status;
}

int Fail(absl::string_view command, const absl::Status& status) {
  if (status.GetPayload(kUsagePayload)) return FailUsage(command, status.message());
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
