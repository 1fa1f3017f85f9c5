// What a command of the `lockstep` program is: flags added to the command line and a body to run.
//
// main() lets every command add itself, parses once, and runs the one body that was chosen. Bodies
// return an exit code and print their own one-line error; nothing here is thread-safe.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lockstep {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,
  kExitUsage = 2,  // flags not understood or contradictory; nothing was started
};

using CommandBody = std::function<int()>;

// Adds a subcommand whose flags and body live together in one Options value; body(options) runs
// when it is chosen.
template <typename Options>
CLI::App* AddCommand(CLI::App& program, CommandBody& chosen, const std::string& name,
                     const std::string& description, int (*body)(const Options&),
                     Options*& options) {
  auto owned = std::make_shared<Options>();  // shared: the callback keeps what the flags write to
  options = owned.get();
  CLI::App* command = program.add_subcommand(name, description);
  command->callback([&chosen, owned, body] { chosen = [owned, body] { return body(*owned); }; });
  return command;
}

void AddServeCommand(CLI::App& program, CommandBody& chosen);
void AddControllerCommand(CLI::App& program, CommandBody& chosen);
void AddWorkerCommand(CLI::App& program, CommandBody& chosen);
void AddGenerateCommand(CLI::App& program, CommandBody& chosen);
void AddTokenizeCommand(CLI::App& program, CommandBody& chosen);
void AddStatusCommand(CLI::App& program, CommandBody& chosen);
void AddBenchCommand(CLI::App& program, CommandBody& chosen);
void AddModelCommand(CLI::App& program, CommandBody& chosen);

// A check of a number's range whose error names the value and the limits.
CLI::Validator Between(double min, double max);

// Prints "lockstep COMMAND: message" on stderr, as one line, and returns the exit code that fits.
int Fail(absl::string_view command, const absl::Status& status);
int FailUsage(absl::string_view command, absl::string_view message);

}  // namespace lockstep
