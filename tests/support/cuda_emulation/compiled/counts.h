// What launches of compiled kernels do, counted: how many instructions they take and how their
// accesses lie in memory. A GPU's time follows from it as far as it is bound by one of them;
// waiting is not counted, nor what the assembler, which turns PTX into a GPU's own code, saves or
// adds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tests/support/cuda_emulation/compiled/program.h"

namespace lockstep::cuda_emulation::ptx {

// Warps execute an instruction once for all their lanes, and so these are counted, as if no lanes
// ever parted: of all threads, divided by 32.
struct LaunchCounts {
  std::string kernel;  // as mangled
  int64_t blocks = 0;
  int threads = 0;  // of a block
  double instructions = 0;
  double products = 0;  // of matrices, by warps
  double special = 0;   // powers, roots and reciprocals
  // Of global memory, sectors of 32 bytes: that warps' accesses fall into, the fewest that hold
  // what they ask for, and those that all blocks together read and write, each counted once.
  int64_t sectors = 0;
  int64_t fewest_sectors = 0;
  int64_t sectors_read = 0;
  int64_t sectors_written = 0;
  // Of shared memory: turns of its 32 banks of 4 bytes, and the fewest for the same bytes.
  int64_t turns = 0;
  int64_t fewest_turns = 0;
};

// Of one launch; told by its threads, which take turns.
class LaunchCounter {
 public:
  LaunchCounter(const Program& program, int64_t blocks, int threads);
  ~LaunchCounter();  // adds what was counted to what TakeLaunchCounts gives
  LaunchCounter(const LaunchCounter&) = delete;
  LaunchCounter& operator=(const LaunchCounter&) = delete;

  void BeginThread(int64_t block);
  void Execute(Unit unit) { ++executed_[static_cast<size_t>(unit)]; }
  // The lane's `time`-th execution of this access of its warp.
  struct Access {
    int warp;
    int lane;
    int index;  // of the instruction and of the memory that it accesses
    uint32_t time;
    uint64_t address;  // in its space
    uint32_t bytes;
    bool is_shared;
    bool is_write;
  };
  void Add(const Access& access);
  // By a copy that no lane makes by itself.
  void AddBulkRead(uint64_t address, uint32_t bytes);

 private:
  struct WarpAccess {
    uint32_t bytes = 0;
    uint32_t lanes = 0;
    bool is_shared = false;
    std::array<uint64_t, 32> addresses;
  };
  void EndBlock();
  void CountShared(const WarpAccess& access);
  void CountGlobal(const WarpAccess& access);

  LaunchCounts counts_;
  int64_t block_ = -1;
  std::array<int64_t, kNumUnits> executed_ = {};
  std::unordered_map<uint64_t, WarpAccess> accesses_;  // of the block
  std::unordered_set<uint64_t> read_;                  // sectors
  std::unordered_set<uint64_t> written_;
};

// Whether launches from now on are counted: they take several times as long. Off unless asked.
void CountLaunches(bool count);
bool LaunchesAreCounted();
// Of the counted launches that have ended since these were last taken, in their order.
std::vector<LaunchCounts> TakeLaunchCounts();

}  // namespace lockstep::cuda_emulation::ptx
