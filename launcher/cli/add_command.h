// How a file adds a command or flags to the command line.
#pragma once

#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "launcher/cli/command.h"

namespace lockstep {

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

// A check of a number's range whose error names the value and the limits.
CLI::Validator Between(double min, double max);
// Refuses "": a variable of a script that was never set.
CLI::Validator NotEmpty();

}  // namespace lockstep
