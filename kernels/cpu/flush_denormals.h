// Treats denormal numbers as zero, inputs and results, on this thread while it lives: what the bf16
// instructions do whatever the control register says, asked of the ordinary ones.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace lockstep::cpu {

class FlushDenormals {
 public:
  FlushDenormals() : saved_(Read()) { Write(saved_ | kFlush); }
  ~FlushDenormals() { Write(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040;  // MXCSR: flush to zero, denormals are zero
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;  // FPCR.FZ
  static uint64_t Read() {
    uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value)::"memory");
    return value;
  }
  static void Write(uint64_t value) { asm volatile("msr fpcr, %0" ::"r"(value) : "memory"); }
#else
#error "tell how this processor flushes denormals"
#endif

  uint64_t saved_;
};

}  // namespace lockstep::cpu
