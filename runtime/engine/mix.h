// A cheap, well-spread 64-bit mixing step for hash chains and for the simulation's pseudo-random
// numbers. Not cryptographic.
#pragma once

#include <cstdint>

namespace lockstep::engine {

// The finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014).
inline uint64_t Mix(uint64_t state, uint64_t value) {
  uint64_t z = (state ^ value) + 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace lockstep::engine
