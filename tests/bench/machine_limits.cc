#include "tests/bench/machine_limits.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace lockstep::bench {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

constexpr int kChains = 12;  // enough independent chains to hide the latency of two FMA units

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

#if defined(__x86_64__)
[[gnu::target("avx512f"), gnu::optimize("O3", "fp-contract=fast")]] void FmaAvx512(int64_t n) {
  FmaChains<float [[gnu::vector_size(64)]]>(n);
}
[[gnu::target("avx2,fma"), gnu::optimize("O3", "fp-contract=fast")]] void FmaAvx2(int64_t n) {
  FmaChains<float [[gnu::vector_size(32)]]>(n);
}
#endif
void FmaPortable(int64_t n) { FmaChains<float [[gnu::vector_size(16)]]>(n); }

struct FmaLoop {
  void (*run)(int64_t);
  int lanes;
};

FmaLoop WidestFmaLoop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return {FmaAvx512, 16};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return {FmaAvx2, 8};
#endif
  return {FmaPortable, 4};
}

}  // namespace

double ReadBandwidth(int num_threads) {
  constexpr size_t kBytes = size_t{512} << 20;
  constexpr size_t kWords = kBytes / sizeof(uint64_t);
  const auto words = std::make_unique_for_overwrite<uint64_t[]>(kWords);
  const size_t share = kWords / num_threads;
  TimeOnThreads(num_threads,
                [&](int thread) { std::fill_n(words.get() + thread * share, share, uint64_t{1}); });
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double seconds = TimeOnThreads(num_threads, [&](int thread) {
      using Words [[gnu::vector_size(32), gnu::aligned(8)]] = uint64_t;
      const uint64_t* begin = words.get() + thread * share;
      Words sums[4] = {};
      for (size_t i = 0; i + 16 <= share; i += 16) {
        for (int lane = 0; lane < 4; ++lane) {
          sums[lane] += *reinterpret_cast<const Words*>(begin + i + 4 * lane);
        }
      }
      Keep(sums);
    });
    best = std::max(best, static_cast<double>(share * num_threads * sizeof(uint64_t)) / seconds);
  }
  return best;
}

double FmaPeak(int num_threads) {
  constexpr int64_t kIterations = 4'000'000;
  const FmaLoop loop = WidestFmaLoop();
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double seconds = TimeOnThreads(num_threads, [&](int) { loop.run(kIterations); });
    const double flops = 2.0 * kIterations * kChains * loop.lanes * num_threads;
    best = std::max(best, flops / seconds);
  }
  return best;
}

}  // namespace lockstep::bench
