// A hash that is the same on every machine and in every run.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv).
constexpr uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace lockstep
