// What this machine can do at best, measured: the denominators of every benchmark's shares.
#pragma once

#include <memory>

namespace lockstep::bench {

// How fast memory is right now. It may change within seconds where machines are shared, so what is
// compared with it is measured by turns with it.
class ReadProbe {
 public:
  explicit ReadProbe(int num_threads);
  ~ReadProbe();
  // Bytes per second that the threads read together, each its own part of 512 MiB of memory (far
  // beyond the caches), on huge pages; the best of several passes of some 10 ms.
  double Bandwidth(int num_passes = 5) const;

 private:
  class LargeMemory;
  const int num_threads_;
  std::unique_ptr<LargeMemory> memory_;
};

// Floating-point operations per second of independent f32 fused multiply-adds (two each) in
// registers, on the widest vectors of this processor, all threads at once; the best of several.
double FmaPeak(int num_threads);

// The same of products of bf16 added to f32: by the processor's instruction for pairs of them,
// where it has one and that is faster than multiply-adds.
double Bf16Peak(int num_threads);

// The same of products of bytes added in fours to 32-bit integers (AVX512-VNNI); else FmaPeak.
double Int8Peak(int num_threads);

}  // namespace lockstep::bench
