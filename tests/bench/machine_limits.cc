#include "tests/bench/machine_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tests/bench/timing.h"

namespace lockstep::bench {
namespace {

double TimeOnThreads(int num_threads, const std::function<void(int)>& work) {
  const double start = Seconds();
  std::vector<std::thread> threads;
  for (int thread = 1; thread < num_threads; ++thread) threads.emplace_back(work, thread);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return Seconds() - start;
}

// Keeps a value, and so the work that made it, from being optimised away.
template <typename T>
void Keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

constexpr int kChains = 12;     // enough independent chains to hide the latency of two FMA units
constexpr int kDotChains = 24;  // the bf16 dot product takes longer

template <typename V>
[[gnu::always_inline]] inline void FmaChains(int64_t iterations) {
  const V factor = V{} + 0.999f;
  const V addend = V{} + 0.001f;
  V sums[kChains];
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = V{} + float(chain);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = sums[chain] * factor + addend;
  }
  V total = {};
#pragma GCC unroll 12
  for (int chain = 0; chain < kChains; ++chain) total += sums[chain];
  Keep(total);
}

// Reads [begin, end), 64-byte aligned, in vectors V.
template <typename V>
[[gnu::always_inline]] inline void ReadAll(const char* begin, const char* end) {
  V sums[4] = {};
  for (const V* p = reinterpret_cast<const V*>(begin); p + 4 <= reinterpret_cast<const V*>(end);
       p += 4) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) sums[lane] += p[lane];
  }
  Keep(sums);
}

#if defined(__x86_64__)
[[gnu::target("avx512f"), gnu::optimize("O3", "fp-contract=fast")]] void FmaAvx512(int64_t n) {
  FmaChains<float [[gnu::vector_size(64)]]>(n);
}
[[gnu::target("avx2,fma"), gnu::optimize("O3", "fp-contract=fast")]] void FmaAvx2(int64_t n) {
  FmaChains<float [[gnu::vector_size(32)]]>(n);
}
[[gnu::target("avx512f,avx512bf16")]] void DotAvx512Bf16(int64_t n) {
  __m512i pairs = _mm512_set1_epi32(0x3f803f80);
  __m512 sums[kDotChains] = {};
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 24
    for (int chain = 0; chain < kDotChains; ++chain) {
      asm volatile("vdpbf16ps %1, %1, %0" : "+v"(sums[chain]) : "v"(pairs));
    }
  }
}
[[gnu::target("avx512f,avx512vnni")]] void DotAvx512Vnni(int64_t n) {
  __m512i bytes = _mm512_set1_epi32(0x01010101);
  __m512i sums[kDotChains] = {};
  for (int64_t i = 0; i < n; ++i) {
#pragma GCC unroll 24
    for (int chain = 0; chain < kDotChains; ++chain) {
      asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[chain]) : "v"(bytes));
    }
  }
}
[[gnu::target("avx512f")]] void ReadAvx512(const char* begin, const char* end) {
  ReadAll<uint64_t [[gnu::vector_size(64)]]>(begin, end);
}
[[gnu::target("avx2")]] void ReadAvx2(const char* begin, const char* end) {
  ReadAll<uint64_t [[gnu::vector_size(32)]]>(begin, end);
}
#endif
void FmaPortable(int64_t n) { FmaChains<float [[gnu::vector_size(16)]]>(n); }
void ReadPortable(const char* begin, const char* end) {
  ReadAll<uint64_t [[gnu::vector_size(16)]]>(begin, end);
}

struct ArithmeticLoop {
  void (*run)(int64_t);
  int multiply_adds;  // in one iteration
};

ArithmeticLoop WidestFmaLoop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {FmaAvx512, kChains * 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {FmaAvx2, kChains * 8};
#endif
  return {FmaPortable, kChains * 4};
}

auto WidestReadLoop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return ReadAvx512;
  if (__builtin_cpu_supports("avx2")) return ReadAvx2;
#endif
  return ReadPortable;
}

double Peak(const ArithmeticLoop& loop, int num_threads) {
  constexpr int64_t kIterations = 4'000'000;
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double seconds = TimeOnThreads(num_threads, [&](int) { loop.run(kIterations); });
    const double flops = 2.0 * kIterations * loop.multiply_adds * num_threads;
    best = std::max(best, flops / seconds);
  }
  return best;
}

}  // namespace

// On huge pages where the system gives them, as the weights are: without, a walk of the page table
// for every 4 KiB costs a third of the bandwidth.
class ReadProbe::LargeMemory {
 public:
  explicit LargeMemory(size_t bytes)
      : bytes_(bytes + kHugePage),
        base_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (base_ == MAP_FAILED) std::abort();
    madvise(data(), bytes, MADV_HUGEPAGE);
  }
  ~LargeMemory() { munmap(base_, bytes_); }
  LargeMemory(const LargeMemory&) = delete;
  LargeMemory& operator=(const LargeMemory&) = delete;
  char* data() const {
    return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(base_) + kHugePage - 1) /
                                   kHugePage * kHugePage);
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  size_t bytes_;
  void* base_;
};

constexpr size_t kProbeBytes = size_t{512} << 20;

ReadProbe::ReadProbe(int num_threads)
    : num_threads_(num_threads), memory_(std::make_unique<LargeMemory>(kProbeBytes)) {
  std::memset(memory_->data(), 1, kProbeBytes);
}

ReadProbe::~ReadProbe() = default;

double ReadProbe::Bandwidth(int num_passes) const {
  const size_t share = kProbeBytes / static_cast<size_t>(num_threads_) / 256 * 256;
  const auto read = WidestReadLoop();
  double best = 0;
  for (int pass = 0; pass < num_passes; ++pass) {
    const double seconds = TimeOnThreads(num_threads_, [&](int thread) {
      const char* begin = memory_->data() + static_cast<size_t>(thread) * share;
      read(begin, begin + share);
    });
    best = std::max(best, static_cast<double>(share) * num_threads_ / seconds);
  }
  return best;
}

double FmaPeak(int num_threads) { return Peak(WidestFmaLoop(), num_threads); }

double Bf16Peak(int num_threads) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) {
    return std::max(Peak({DotAvx512Bf16, kDotChains * 32}, num_threads), FmaPeak(num_threads));
  }
#endif
  return FmaPeak(num_threads);
}

double Int8Peak(int num_threads) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni"))
    return Peak({DotAvx512Vnni, kDotChains * 64}, num_threads);
#endif
  return FmaPeak(num_threads);
}

}  // namespace lockstep::bench
