// Random choices of tests: equal seeds give equal choices, everywhere.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>

namespace lockstep::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  // Both ends included.
  int Pick(int low, int high) {
    return static_cast<int>(low + random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int n) { return Pick(1, n) == 1; }
  uint64_t Bits() { return random_(); }
  template <typename List>
  const auto& Of(const List& list) {
    return *(std::begin(list) + Pick(0, static_cast<int>(std::size(list)) - 1));
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace lockstep::testing
