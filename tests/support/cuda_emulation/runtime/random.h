// What falls at random when threads take turns: inline in whoever uses it, at every turn, where the
// standard library's engines and shuffle, of which a program has one copy, would be a sanitizer's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::cuda_emulation {

// SplitMix64 (Steele, Lea and Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}

  uint64_t operator()() {
    uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
  }
  // 0 to count - 1, of counts far below 2^32 as good as evenly.
  size_t Below(size_t count) { return ((*this)() >> 32) * count >> 32; }
  void Shuffle(std::vector<int>& values) {
    int* const first = values.data();
    for (size_t left = values.size(); left > 1; --left) {
      const size_t other = Below(left);
      const int value = first[other];
      first[other] = first[left - 1];
      first[left - 1] = value;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace lockstep::cuda_emulation
