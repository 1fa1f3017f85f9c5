// What ranks make sure of together before any of them reads weights: that each has its memory, that
// tensor parallel groups lie inside nodes, and that their links work, and how fast. That they are
// ranks of one program and model they know by then (runtime/worker/rank_identity.h).
//
// Busy thread only; collective over the grid.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"

namespace lockstep {

constexpr int kNoGpu = -1;  // the host's memory

struct RankFacts {
  std::string host;             // at most 255 bytes
  int node = 0;                 // ranks with the same number share memory
  int64_t needed_bytes = 0;     // weights and KV cache, as they will be held
  int64_t available_bytes = 0;  // before, on its host, or to it on its GPU
  int gpu = kNoGpu;             // whose memory it is, of those that the rank sees
  int64_t foreign_bytes = 0;    // of the GPU, where others' leave less than the rank might fill
  // Of the host's memory, for copies of KV blocks: without a GPU among needed_bytes. And with one,
  // what the host has.
  int64_t offload_bytes = 0;
  int64_t host_available_bytes = 0;
};

// What is sent from and received into. Peers may read it after a failure, too: it stays until the
// ranks have met again (Rendezvous::Next).
struct PreflightMemory {
  std::vector<char> facts;
  DeviceBuffer links;
};

// Of every rank, by rank. Errors as Communicator's.
absl::StatusOr<std::vector<RankFacts>> GatherFacts(const ProcessGrid& grid, RankGroups& groups,
                                                   const RankFacts& mine, PreflightMemory& memory);

// Gathered facts, by rank. As CheckTpInsideNodes (unless allowed), or RESOURCE_EXHAUSTED naming the
// host and the bytes.
absl::Status CheckFacts(const ProcessGrid& grid, std::span<const RankFacts> facts,
                        bool allow_tp_across_nodes);

struct LinkSpeed {
  absl::Duration latency;       // all-reduce of 64 bytes; one way of 8 bytes
  double bytes_per_second = 0;  // all-reduced; sent
};

struct LinkSpeeds {
  std::optional<LinkSpeed> tp;          // nothing when tp is 1
  std::optional<LinkSpeed> next_stage;  // nothing on the last stage
};

// Of groups that exchange memory of backend. Takes milliseconds, and some tens of them over a slow
// network. Errors as Communicator's, and RESOURCE_EXHAUSTED.
absl::StatusOr<LinkSpeeds> MeasureLinks(RankGroups& groups, Backend& backend,
                                        PreflightMemory& memory);

// What an all-reduce takes, for each of these sizes (multiples of 4 bytes). As above.
absl::StatusOr<std::vector<absl::Duration>> MeasureAllReduces(Communicator& group, Backend& backend,
                                                              std::span<const int64_t> sizes);

}  // namespace lockstep
