// The `lockstep` program: finds the command, parses its flags, runs it.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "kernels/base/version.h"
#include "launcher/base/descriptor_limit.h"
#include "launcher/cli/add_command.h"
#include "launcher/cli/foreign_flags.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

void AddAllCommands(CLI::App& program, CommandBody& chosen) {
  AddServeCommand(program, chosen);
  AddGenerateCommand(program, chosen);
  AddGatewayCommand(program, chosen);
  AddBenchCommand(program, chosen);
  AddEvalCommand(program, chosen);
  AddStatusCommand(program, chosen);
  AddTokenizeCommand(program, chosen);
  AddModelCommand(program, chosen);
  AddPlanCommand(program, chosen);
  AddControllerCommand(program, chosen);
  AddWorkerCommand(program, chosen);
  AddCalibrateRankCommand(program, chosen);
}

// "lockstep COMMAND: ", the innermost command that was named, and what is wrong.
int ReportUsageError(const CLI::App& program, const CLI::ParseError& error) {
  std::string path = "lockstep";
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  const std::string message = OneLine(error.what()) + ForeignFlagHint(*command, error.what());
  std::fprintf(stderr, "%s: %s (see: %s --help)\n", path.c_str(), message.c_str(), path.c_str());
  return kExitUsage;
}

// A full disk is a failure: what was asked for is not there.
int WithOutputWritten(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  std::fprintf(stderr, "lockstep: cannot write standard output\n");
  return exit_code == kExitOk ? kExitFailure : exit_code;
}

// Where they are closed, files that are opened later would be taken for them.
void OpenStandardStreams() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fd <= STDERR_FILENO) ::fcntl(fd, F_SETFD, 0);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

int Main(int argc, char** argv) {
  OpenStandardStreams();
  RaiseDescriptorLimit();
  // gRPC's own log lines repeat, at length, what our errors say; GRPC_VERBOSITY=error shows them.
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  CLI::App program("Lockstep serves Llama-class models from tensor and pipeline parallel ranks.",
                   "lockstep");
  program.set_version_flag("--version", std::string("lockstep ") + Version());
  program.require_subcommand(0, 1);  // none is answered with help below; a wrong one is named
  program.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  program.get_formatter()->column_width(36);
  CommandBody chosen;
  AddAllCommands(program, chosen);
  RefuseEmptyValues(program);
  try {
    program.parse(ArgumentsForParse(program, argc, argv));
  } catch (const CLI::Success& success) {  // --help, --version
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    return ReportUsageError(program, error);
  }
  if (!chosen) {
    std::fprintf(stderr, "%s", program.help().c_str());
    return kExitUsage;
  }
  return WithOutputWritten(chosen());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::Main(argc, argv);
  } catch (const std::exception& error) {  // a library's; ours do not throw
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return lockstep::kExitFailure;
  }
}
