// Which of a host's processors each of its ranks keeps to.
//
// Ranks that share a host compute best side by side: each on neighbouring processors with a
// last-level cache and a memory node of their own, where the system's scheduler would move their
// threads about. Inside its share a rank's threads stay free, so that a neighbour that takes a core
// delays one thread for a moment and not one rank for good. What a rank and its GPU send each other
// stays within a memory node where their processors are that node's.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lockstep {

// A processor that this process may run on. What the system does not tell is 0.
struct HostCore {
  int cpu = 0;    // as the system numbers it
  int node = 0;   // NUMA
  int cache = 0;  // of the last level
  int core = 0;   // within its package; hyperthreads share it
  int package = 0;
};

// Of the calling thread's processors; `sysfs` is where the system tells about them. Ascending cpu.
std::vector<HostCore> FindHostCores(const std::string& sysfs = "/sys");

// The processors of the rank-th of a host's ranks. gpu_nodes: by rank, the memory node of its GPU;
// -1: none, or not known. Where every rank's is known and has as many processors as ranks, it is a
// share of that node's, else of all; contiguous by node, cache and core. Empty where nothing is
// gained: all processors for a single rank, fewer than ranks, or one last-level cache for all.
std::vector<int> CoresOfRank(std::vector<HostCore> cores, int rank, std::span<const int> gpu_nodes);

// From now on the calling thread, and every thread it starts, runs on these processors only.
// UNAVAILABLE with the system's reason.
absl::Status StayOn(const std::vector<int>& cpus);

}  // namespace lockstep
