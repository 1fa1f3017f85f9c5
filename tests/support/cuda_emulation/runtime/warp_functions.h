// Where a thread waits for others of its block or warp. A call is told by its place in the source:
// threads that meet at different ones have diverged.
#pragma once

#include <cstdint>
#include <cstring>
#include <source_location>

#include "tests/support/cuda_emulation/runtime/language.h"

namespace lockstep::cuda_emulation {

// A place in the source of a kernel, or in what was compiled of it.
class Site {
 public:
  constexpr Site() = default;
  constexpr Site(const std::source_location& place)
      : file_name_(place.file_name()), line_(place.line()), column_(place.column()) {}
  constexpr Site(const char* file_name, unsigned line) : file_name_(file_name), line_(line) {}
  const char* file_name() const { return file_name_; }
  unsigned line() const { return line_; }
  unsigned column() const { return column_; }

 private:
  const char* file_name_ = "";
  unsigned line_ = 0;
  unsigned column_ = 0;
};
bool SamePlace(const Site& a, const Site& b);

// Waits for all threads of the block that have not returned.
void BlockBarrier(const Site& site);
bool BlockBarrierOr(bool mine, const Site& site);

// What lanes exchange: called once, when all lanes of `mask` have come with the same exchange and
// mask; operands[lane] is what the lane brought, null for lanes outside the mask.
using Exchange = void (*)(void* const operands[32], uint32_t mask);
void WarpExchange(const char* name, uint32_t mask, void* operand, Exchange exchange,
                  const Site& site);

// Of the thread that has its turn.
int CurrentLane();
[[noreturn]] void FailThread(const char* what, const Site& site);

struct Shuffle {
  uint64_t given = 0;
  uint64_t received = 0;
  int from = 0;
};
void ExchangeShuffle(void* const operands[32], uint32_t mask);

template <typename T>
T ShuffleFrom(const char* name, uint32_t mask, T value, int from, const Site& site) {
  static_assert(sizeof(T) <= 8);
  Shuffle shuffle;
  std::memcpy(&shuffle.given, &value, sizeof(T));
  shuffle.from = from;
  WarpExchange(name, mask, &shuffle, &ExchangeShuffle, site);
  std::memcpy(&value, &shuffle.received, sizeof(T));
  return value;
}

uint32_t Ballot(const char* name, uint32_t mask, bool predicate, const Site& site);

}  // namespace lockstep::cuda_emulation

#define LOCKSTEP_SITE const lockstep::cuda_emulation::Site& site = std::source_location::current()

inline void __syncthreads(LOCKSTEP_SITE) { lockstep::cuda_emulation::BlockBarrier(site); }
inline int __syncthreads_or(int predicate, LOCKSTEP_SITE) {
  return lockstep::cuda_emulation::BlockBarrierOr(predicate != 0, site);
}
void __syncwarp(uint32_t mask = 0xffffffffu, LOCKSTEP_SITE);

inline uint32_t __ballot_sync(uint32_t mask, int predicate, LOCKSTEP_SITE) {
  return lockstep::cuda_emulation::Ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(uint32_t mask, int predicate, LOCKSTEP_SITE) {
  return lockstep::cuda_emulation::Ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, LOCKSTEP_SITE) {
  return lockstep::cuda_emulation::Ballot("__all_sync", mask, predicate != 0, site) == mask;
}

// A source outside the lane's segment of `width` lanes is the lane itself.
template <typename T>
T __shfl_sync(uint32_t mask, T value, int source, int width = warpSize, LOCKSTEP_SITE) {
  const int lane = lockstep::cuda_emulation::CurrentLane();
  const int from = (lane & ~(width - 1)) | (source & (width - 1));
  return lockstep::cuda_emulation::ShuffleFrom("__shfl_sync", mask, value, from, site);
}
template <typename T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = warpSize, LOCKSTEP_SITE) {
  const int lane = lockstep::cuda_emulation::CurrentLane();
  const int other = lane ^ bits;
  const int from = other <= (lane | (width - 1)) ? other : lane;
  return lockstep::cuda_emulation::ShuffleFrom("__shfl_xor_sync", mask, value, from, site);
}
template <typename T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = warpSize, LOCKSTEP_SITE) {
  const int lane = lockstep::cuda_emulation::CurrentLane();
  const int other = lane + static_cast<int>(delta);
  const int from = other <= (lane | (width - 1)) ? other : lane;
  return lockstep::cuda_emulation::ShuffleFrom("__shfl_down_sync", mask, value, from, site);
}
template <typename T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = warpSize, LOCKSTEP_SITE) {
  const int lane = lockstep::cuda_emulation::CurrentLane();
  const int other = lane - static_cast<int>(delta);
  const int from = other >= (lane & ~(width - 1)) ? other : lane;
  return lockstep::cuda_emulation::ShuffleFrom("__shfl_up_sync", mask, value, from, site);
}
#undef LOCKSTEP_SITE
