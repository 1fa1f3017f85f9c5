// Counter-based random numbers: a pure function of (seed, sequence, position), so that a token's
// draw does not depend on what else runs, on where it runs or on how often it is computed again.
// Any thread.
//
// Philox4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011, section 4.3; constants and test vectors from the authors' Random123 library.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;  // the golden ratio
    key[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

// The draw that chooses the token at `position` of output `sequence_index`: uniform in [0, 1), 53
// bits.
constexpr double TokenUniform(uint64_t seed, uint32_t sequence_index, uint64_t position) {
  const PhiloxCounter words = Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), sequence_index, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace lockstep
