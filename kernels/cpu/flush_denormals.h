// Denormal numbers treated as zero, inputs and results, on this thread while an object lives: what
// the bf16 instructions do whatever the control register says, asked of the ordinary ones. The
// compiler does not know that arithmetic depends on it: only calls and volatile asm keep it inside.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::cpu {
namespace {  // the instruction-set files include it: vector_kernels.h

#if defined(__x86_64__)
constexpr uint64_t kFlushBits = 0x8040;  // MXCSR: flush to zero, denormals are zero
inline uint64_t ReadFloatControl() { return _mm_getcsr(); }
inline void WriteFloatControl(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
constexpr uint64_t kFlushBits = uint64_t{1} << 24;  // FPCR.FZ
inline uint64_t ReadFloatControl() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
  return value;
}
inline void WriteFloatControl(uint64_t value) {
  asm volatile("msr fpcr, %0" ::"r"(value) : "memory");
}
#else
#error "tell how this processor flushes denormals"
#endif

template <bool kFlush>
class DenormalMode {
 public:
  DenormalMode() : saved_(ReadFloatControl()) {
    WriteFloatControl(kFlush ? saved_ | kFlushBits : saved_ & ~kFlushBits);
  }
  ~DenormalMode() { WriteFloatControl(saved_); }
  DenormalMode(const DenormalMode&) = delete;
  DenormalMode& operator=(const DenormalMode&) = delete;

 private:
  uint64_t saved_;
};

using FlushDenormals = DenormalMode<true>;
using KeepDenormals = DenormalMode<false>;

}  // namespace
}  // namespace lockstep::cpu
