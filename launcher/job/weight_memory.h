// Memory that outlives the ranks of a host: their packed weights stay in it while a lost job is
// started again, and replicas share it. It is gone with the process that made it, however that ends
// (memfd_create(2)).
//
// Ranks get their file's descriptor over a Unix socket in a directory of the launch: those of an
// unprivileged user run in a user namespace of their own (launcher/job/private_network.h), from
// which /proc does not show them another process's files.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/fd.h"

namespace lockstep {

class WeightMemory {
 public:
  // An empty file for each rank of a replica, handed out until this object goes. UNAVAILABLE with
  // errno's text.
  static absl::StatusOr<std::unique_ptr<WeightMemory>> Create(
      int num_ranks, const std::filesystem::path& directory);
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  const std::filesystem::path& socket() const { return socket_; }

  // In a rank: its file, which can be opened by PathOf while the descriptor is held. UNAVAILABLE
  // when nobody answers or there is no file for that rank.
  static absl::StatusOr<Fd> Receive(const std::filesystem::path& socket, int rank);
  static std::filesystem::path PathOf(const Fd& file);

 private:
  WeightMemory(std::vector<Fd> files, std::filesystem::path socket, Fd listener);
  void Serve() const;
  void Answer(const Fd& peer) const;

  const std::vector<Fd> files_;
  const std::filesystem::path socket_;
  const Fd listener_;
  std::atomic<bool> is_ending_{false};
  std::thread thread_;
};

}  // namespace lockstep
