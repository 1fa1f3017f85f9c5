// What the ranks of a replica must have in common. They tell each other before anything is built on
// it: groups of devices, in which ranks that differ wait for each other for ever, and steps, of
// which they would make nonsense.
//
// Busy thread only; collective over the grid.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"

namespace lockstep {

// As told to operators: what is the same is the same text.
struct RankIdentity {
  std::string host;
  bool is_loaded = false;  // it has its weights; ranks may differ in this
  std::string version;
  std::string model;      // its fingerprint
  std::string tokenizer;  // likewise
  std::string device;     // "cpu" or "cuda"
  std::string dtype;      // that matrices and KV cache are held in
  std::string deterministic;
  std::string block_size;
  std::string max_num_seqs;
  std::string max_batched_tokens;
  std::string max_model_len;
  std::string fp8_weights;  // how those of an FP8 checkpoint are held; the same within a stage
};

// Peers read its memory: it stays until the groups are gone.
class IdentityExchange {
 public:
  // Of every rank, by rank; long texts shortened such that different ones stay different. Once.
  // Errors as Communicator's.
  absl::StatusOr<std::vector<RankIdentity>> Run(const ProcessGrid& grid, RankGroups& groups,
                                                const RankIdentity& mine);

 private:
  using Record = std::array<char, 4096>;  // the same in all versions, which can then tell

  Record mine_ = {};
  std::vector<Record> of_stage_;
  std::vector<Record> of_all_;
};

// FAILED_PRECONDITION naming two ranks that differ, their hosts and values, and what to do. By
// rank, grid.world_size() of them.
absl::Status CheckIdentities(const ProcessGrid& grid, std::span<const RankIdentity> ranks);

}  // namespace lockstep
