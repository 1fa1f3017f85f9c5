// What a command of the `lockstep` program is: flags added to the command line and a body to run.
//
// main() lets every command add itself, parses once, and runs the one body that was chosen. Bodies
// return an exit code and print their own one-line error; nothing here is thread-safe. Files that
// add flags include add_command.h: CLI11 costs five seconds of compilation wherever it is included.
#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,  // flags not understood, contradictory or not for this model; nothing ran
};

using CommandBody = std::function<int()>;

void AddServeCommand(CLI::App& program, CommandBody& chosen);
void AddControllerCommand(CLI::App& program, CommandBody& chosen);
void AddWorkerCommand(CLI::App& program, CommandBody& chosen);
void AddGenerateCommand(CLI::App& program, CommandBody& chosen);
void AddGatewayCommand(CLI::App& program, CommandBody& chosen);
void AddTokenizeCommand(CLI::App& program, CommandBody& chosen);
void AddStatusCommand(CLI::App& program, CommandBody& chosen);
void AddBenchCommand(CLI::App& program, CommandBody& chosen);
void AddEvalCommand(CLI::App& program, CommandBody& chosen);
void AddModelCommand(CLI::App& program, CommandBody& chosen);
void AddPlanCommand(CLI::App& program, CommandBody& chosen);
void AddCalibrateRankCommand(CLI::App& program, CommandBody& chosen);

// The same error, marked as one of usage.
absl::Status UsageError(absl::Status status);
// Marked so where it is INVALID_ARGUMENT: of what flags alone decide.
absl::Status UsageErrorIfInvalid(absl::Status status);
template <typename T>
absl::StatusOr<T> UsageErrorIfInvalid(absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return UsageErrorIfInvalid(std::move(result).status());
}
// Prints "lockstep COMMAND: message" on stderr, as one line, and returns the exit code that fits.
int Fail(absl::string_view command, const absl::Status& status);
int FailUsage(absl::string_view command, absl::string_view message);

}  // namespace lockstep
