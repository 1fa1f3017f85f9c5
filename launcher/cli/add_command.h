// How a file adds a command or flags to the command line.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

// An option that may be repeated, or ("name" without dashes) the command's positional arguments:
// each takes one argument as it is. A std::vector given to CLI11's add_option instead takes every
// argument up to the next flag, the command's positional ones too, and splits "[a,b]" in two.
CLI::Option* AddTexts(CLI::App& command, const std::string& name, std::vector<std::string>& texts,
                      const std::string& description);

// For all flags of all commands that take a value, once they are added: an empty one is a variable
// of a script that was never set, and must not mean that there is no token, certificate or host.
void RefuseEmptyValues(CLI::App& command);

// The arguments in CLI11's order, the last first. "--flag=" becomes "--flag" and "": CLI11 takes
// the argument that follows for the value of "--flag=".
std::vector<std::string> ArgumentsForParse(const CLI::App& program, int argc,
                                           const char* const* argv);

// Checks of a number's range whose errors name the value and the limits. Neither takes leading
// zeros: CLI11 would read 010 as 8 and 0x10 as 16.
CLI::Validator Between(double min, double max);
// Digits alone, up to 2^64 - 1: CLI11 makes 2^64 - 5 of -5 and 2^64 - 1 of whatever is larger.
CLI::Validator Unsigned64();
// Take what ParseHostPort and ParseLengthRange (launcher/cli/values.h) take.
CLI::Validator HostAndPort();
CLI::Validator LengthOrRange();

}  // namespace lockstep
