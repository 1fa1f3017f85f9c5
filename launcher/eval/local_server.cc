#include "launcher/eval/local_server.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "kernels/base/this_program.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(10);
// For an end of which the kernel does not tell.
constexpr absl::Duration kLookInterval = absl::Milliseconds(200);

std::vector<std::string> Environment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  return variables;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalServer>> LocalServer::Start(
    const std::vector<std::string>& arguments, InterruptWatcher& interrupts) {
  JobSpec job;
  ASSIGN_OR_RETURN(const std::string program, ThisProgram());
  job.command = {program, "serve"};
  job.command.insert(job.command.end(), arguments.begin(), arguments.end());
  // On this host, also inside a Slurm allocation.
  job.command.insert(job.command.end(),
                     {"--json", "--listen", "127.0.0.1:0", "--launcher", "mpirun"});
  job.environment = Environment();
  std::unique_ptr<LocalServer> server(new LocalServer());
  ASSIGN_OR_RETURN(server->process_,
                   JobSupervisor::Start(job, [raw = server.get()](absl::string_view line) {
                     raw->HandleLine(line);
                   }));
  JobSupervisor& process = *server->process_;
  while (server->address_.empty()) {
    WaitReadable({process.fd(), interrupts.fd()}, kLookInterval);
    if (interrupts.TakeCount() > 0) return absl::CancelledError("interrupted");
    process.ReadOutput();
    if (server->address_.empty() && process.Wait(SteadyNow())) {
      const std::string& words = server->last_words_;
      return absl::UnavailableError(words.empty() ? absl::StrCat("the server did not start (",
                                                                 process.exit()->ToString(), ")")
                                                  : words);
    }
  }
  return server;
}

LocalServer::~LocalServer() {
  if (process_) process_->Terminate(kGrace);
}

void LocalServer::HandleLine(absl::string_view line) {
  const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    last_words_ = std::string(absl::StripPrefix(line, "lockstep serve: "));
  } else if (event.value("event", "") == "ready" && event.contains("address")) {
    address_ = event.value("address", "");
  }
}

}  // namespace lockstep
