// The hosts of a job and the ranks that go where: lists as people type them, Open MPI's host files,
// Slurm's compressed lists. Pure, except for the reading of a file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lockstep {

struct HostSlots {
  std::string name;  // [A-Za-z0-9._-], not beginning with '-' (it goes onto ssh's command line)
  int slots = 1;     // ranks it takes, [1, 65536]
};

// "a:8,b:8,c"; without a number one slot, as in mpirun's --host. Hosts may repeat. All errors are
// INVALID_ARGUMENT naming the item.
absl::StatusOr<std::vector<HostSlots>> ParseHostList(absl::string_view text);

// Open MPI's: a host per line, "a", "a slots=8 max_slots=8" or "a:8", comments from '#' on. Errors
// name `file` and the line.
absl::StatusOr<std::vector<HostSlots>> ParseHostfile(absl::string_view content,
                                                     absl::string_view file);
// Errors also as ReadWhole (kernels/base/text_file.h).
absl::StatusOr<std::vector<HostSlots>> ReadHostfile(const std::filesystem::path& file);

// Slurm's node list "n[01-03,7],login" and its tasks per node "8(x2),4", node by node.
// Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES.
absl::StatusOr<std::vector<HostSlots>> ParseSlurmHosts(absl::string_view node_list,
                                                       absl::string_view tasks_per_node);

// The host of every rank: slots are filled in order. RESOURCE_EXHAUSTED when there are too few.
absl::StatusOr<std::vector<std::string>> PlaceRanks(absl::Span<const HostSlots> hosts,
                                                    int world_size);

}  // namespace lockstep
