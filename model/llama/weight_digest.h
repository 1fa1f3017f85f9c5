// What tells whether bytes are those that were written. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep {

// Of pieces of a file, in whatever order threads add them: those must be cut alike to be compared.
// XXH3 (https://xxhash.com) of each, beginning from its place, all of them in one sum of bits: made
// against accidents, not against people, at the speed of memory.
class WeightDigest {
 public:
  void Add(const void* piece, int64_t bytes, int64_t offset);
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace lockstep
