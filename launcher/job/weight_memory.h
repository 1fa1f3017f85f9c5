// Memory that outlives the ranks of a host: their packed weights stay in it while a lost job is
// started again, and replicas share it. It is gone with the process that made it, however that ends
// (memfd_create(2)).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/base/fd.h"

namespace lockstep {

class WeightMemory {
 public:
  // An empty file for each rank of a replica. UNAVAILABLE with errno's text.
  static absl::StatusOr<WeightMemory> Create(int num_ranks);
  // What ranks are told: "PID:FD,FD,...".
  std::string ToString() const;
  // The path by which a rank of the same user opens its file. INVALID_ARGUMENT naming what is
  // wrong.
  static absl::StatusOr<std::filesystem::path> PathOf(absl::string_view text, int rank);

 private:
  explicit WeightMemory(std::vector<Fd> files) : files_(std::move(files)) {}
  std::vector<Fd> files_;
};

}  // namespace lockstep
