#include "tests/e2e/lockstep_process.h"

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "absl/time/clock.h"
#include "launcher/job/mpi_command.h"

namespace lockstep::testing {

namespace fs = std::filesystem;
using nlohmann::json;

std::unique_ptr<Process> StartRanks(int count, const std::filesystem::path& scratch,
                                    const std::vector<std::string>& worker) {
  return std::make_unique<Process>(
      LocalMpiCommand(*FindMpirun(), count, {scratch, scratch}, worker));
}

std::string LockstepBinary() {
  const char* given = std::getenv("LOCKSTEP_BINARY");
  return given != nullptr ? given : LOCKSTEP_BINARY;
}

Finished RunLockstep(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {LockstepBinary()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const absl::Time start = absl::Now();
  Process process(command);
  Finished finished;
  finished.code = process.Wait(kPatience).value_or(-1);
  finished.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  finished.out = process.out();
  finished.err = process.err();
  return finished;
}

Server::Server(std::vector<std::string> arguments, const std::string& listen,
               const std::string& program) {
  std::vector<std::string> command = {program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.insert(command.end(), {"--json", "--listen", listen});
  process_ = std::make_unique<Process>(
      command,
      std::map<std::string, std::string>{{"XDG_RUNTIME_DIR", runtime_dir_.path().string()}});
}

json Server::FindEvent(const std::string& out, const std::string& name,
                       std::optional<int> replica) const {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line, nullptr, false);
    if (!event.is_object() || event.value("event", "") != name) continue;
    if (!replica || event.value("replica", -1) == *replica) return event;
  }
  return nullptr;
}

json Server::WaitEvent(const std::string& name, std::optional<int> replica) {
  json event;
  const bool found = process_->WaitForOutput(
      [&](const std::string& out) {
        event = FindEvent(out, name, replica);
        return !event.is_null();
      },
      kPatience);
  EXPECT_TRUE(found) << "no event " << name << "; printed:\n" << process_->out() << process_->err();
  return event;
}

json Server::WaitReady() {
  const json ready = WaitEvent("ready");
  if (!ready.is_null()) address_ = ready["address"];
  return ready;
}

std::vector<std::string> Server::RuntimeFiles() const {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(runtime_dir_.path())) {
    files.push_back(entry.path().filename().string());
  }
  return files;
}

json Server::Status() {
  const Finished finished = RunLockstep({"status", "--server", address_, "--json"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  return json::parse(finished.out, nullptr, false);
}

std::unique_ptr<Process> StartClient(const Server& server, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LockstepBinary());
  arguments.insert(arguments.end(), {"--server", server.address()});
  return std::make_unique<Process>(arguments);
}

}  // namespace lockstep::testing
