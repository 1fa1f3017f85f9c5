// The `lockstep` program as end-to-end tests use it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/process.h"
#include "tests/support/temp_directory.h"

namespace lockstep::testing {

// Generous: the tests say what happens, not how fast a loaded machine does it.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

std::string LockstepBinary();

struct Finished {
  int code = -1;
  std::string out;
  std::string err;
  double seconds = 0;
};

// Runs `lockstep ARGUMENTS` to its end.
Finished RunLockstep(const std::vector<std::string>& arguments);

// A running `lockstep serve` (or controller) with --json, whose runtime directory lies in a
// directory of the test's own.
class Server {
 public:
  explicit Server(std::vector<std::string> arguments, const std::string& listen = "127.0.0.1:0",
                  const std::string& program = LockstepBinary());

  // The "ready" event; null with a test failure when it does not come.
  nlohmann::json WaitReady();
  // The first event of that name, of that replica if one is given.
  nlohmann::json WaitEvent(const std::string& name, std::optional<int> replica = std::nullopt);
  const std::string& address() const { return address_; }
  Process& process() { return *process_; }
  // What is left of the launch in the runtime directory.
  std::vector<std::string> RuntimeFiles() const;
  nlohmann::json Status();

 private:
  nlohmann::json FindEvent(const std::string& out, const std::string& name,
                           std::optional<int> replica) const;
  const TempDirectory runtime_dir_;
  std::unique_ptr<Process> process_;
  std::string address_;
};

// `count` ranks placed by hand, as `mpirun` would start them: each runs `worker`, a whole command;
// what MPI keeps in files lies in `scratch`.
std::unique_ptr<Process> StartRanks(int count, const std::filesystem::path& scratch,
                                    const std::vector<std::string>& worker);

// A client command against that server, started in the background.
std::unique_ptr<Process> StartClient(const Server& server, std::vector<std::string> arguments);

}  // namespace lockstep::testing
