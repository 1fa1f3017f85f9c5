// What a controller's ranks tell of themselves, and what happened to them. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/accelerator.h"
#include "kernels/device_memory.h"
#include "runtime/controller/served_load.h"

namespace lockstep {

// What a rank found before it read weights (proto/lockstep/v1/worker.proto, Preflight).
struct RankCheck {
  struct Link {
    double latency_us = 0;
    double bytes_per_second = 0;
  };
  struct Gpu {
    int index = 0;  // among those that the rank sees
    std::string name;
    int64_t memory_bytes = 0;
    std::string pci_bus_id;
    int numa_node = -1;                       // -1: not known
    std::string nearest_nic;                  // empty: none
    std::string nic_distance;                 // "same PCIe switch"
    std::string idle_nic;                     // nearer, but without a link; empty: none
    std::map<std::string, DeviceLink> links;  // by the other's pci_bus_id
  };
  int node = 0;
  int64_t needed_bytes = 0;
  int64_t available_bytes = 0;
  std::optional<Link> tp;
  std::optional<Link> next_stage;
  std::optional<Gpu> gpu = std::nullopt;  // whose memory it is
};

// How a rank's GPU is filled before there is a KV cache (proto/lockstep/v1/worker.proto,
// GpuMemory).
struct RankMemory {
  DeviceMemory device;  // held: weights and what steps need
  int64_t weight_bytes = 0;
  int64_t batched_token_bytes = 0;  // of step_bytes, for each of max_batched_tokens

  int64_t step_bytes() const { return device.held_bytes - weight_bytes; }
};

// What happened to the ranks, for whoever watches (`lockstep serve` prints it).
struct ControllerEvent {
  enum class Kind {
    kRankJoined,     // rank, host, pid
    kRankChecked,    // host, check
    kRankLoading,    // bytes_done, bytes_total
    kRankLoaded,     // bytes_done = bytes_total = the rank's shard, weight_bytes, message = backend
    kRankRehearsed,  // memory
    kServing,        // num_kv_blocks, num_host_blocks, max_model_len
    kRankLost,       // message names rank, host, stage and last operation
    kFailed,         // message: the cause; nothing is served until the next epoch
    kWarning,        // message
    kDrained,        // no request is left, and clients have all of theirs: served, prediction.
                     // Once, and the last
  };
  enum class Cause {
    kRankVanished,    // its stream closed, its lease ran out, its step did not end
    kRankComplained,  // it said that it failed, or what it said makes no sense
  };
  Kind kind = Kind::kRankJoined;
  Cause cause = Cause::kRankVanished;  // kRankLost
  int replica = 0;
  uint64_t epoch = 0;
  int rank = -1;
  int tp_rank = -1;
  int pipeline_stage = -1;
  std::string host;
  int64_t pid = 0;
  RankCheck check;
  int64_t bytes_done = 0;  // of the checkpoint, by this rank
  int64_t bytes_total = 0;
  int64_t weight_bytes = 0;          // held in memory by this rank
  int64_t mapped_bytes = 0;          // of them, packed by an earlier start
  std::optional<RankMemory> memory;  // of a GPU
  int64_t num_kv_blocks = 0;
  int64_t num_host_blocks = 0;
  int64_t max_model_len = 0;
  ServedLoad served;
  std::optional<SpeedPrediction> prediction;  // of that load
  std::string message;
  // kRankLost: what every rank of the replica was and did last. Who looks from outside may know
  // better which one went first.
  std::vector<std::string> ranks;
};

}  // namespace lockstep
