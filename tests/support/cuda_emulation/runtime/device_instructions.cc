#include <device_instructions.cuh>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/matrix_product.h"

namespace lockstep::cuda {

namespace {

using cuda_emulation::FailThread;
using cuda_emulation::FromE4m3;
using cuda_emulation::Site;
using cuda_emulation::TheBlockRunner;
constexpr uint32_t kAllLanes = 0xffffffffu;
std::atomic<int64_t> num_prefetched_bytes = 0;

uint16_t RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;  // what the instruction gives for any NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The nearest of both neighbours; of two as near the one whose last bit is 0. NaN as above.
uint16_t RoundToF16(float value) {
  if (std::isnan(value)) return 0x7fff;
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::abs(value);
  constexpr float kFirstInfinite = 65520.0f;
  if (magnitude >= kFirstInfinite) return sign | 0x7c00;
  if (magnitude == 0.0f) return sign;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  // Units in the last place: of the normal numbers' 11 bits, and below them 2^-24.
  const int unit = std::max(exponent - 11, -24);
  const float units = std::nearbyint(std::ldexp(magnitude, -unit));  // below 2048, or that
  return static_cast<uint16_t>(sign | (static_cast<int>(units) + (unit + 24) * 1024));
}

struct Fragments {
  bool is_f16;
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

struct Tiles {
  alignas(16) float a[16][16];
  alignas(16) float b[16][8];
};

template <typename T>
void Unpack(uint32_t packed, float& low, float& high) {
  low = ToFloat(T{static_cast<uint16_t>(packed)});
  high = ToFloat(T{static_cast<uint16_t>(packed >> 16)});
}

template <typename T>
void Gather(void* const operands[32], Tiles& tiles) {
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<const Fragments*>(operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      float* pair = &tiles.a[g + 8 * (i % 2)][2 * t + 8 * (i / 2)];
      Unpack<T>(mine.a[i], pair[0], pair[1]);
    }
    for (int i = 0; i < 2; ++i) {
      const int k = 2 * t + 8 * i;
      Unpack<T>(mine.b[i], tiles.b[k][g], tiles.b[k + 1][g]);
    }
  }
}

// Each lane's numbers of d.
template <typename Use>
void ForEachSum(void* const operands[32], const Use& use) {
  for (int lane = 0; lane < 32; ++lane) {
    float* d = static_cast<const Fragments*>(operands[lane])->d;
    for (int i = 0; i < 4; ++i) use(lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2, d[i]);
  }
}

using Four = float __attribute__((vector_size(16)));

void Multiply(void* const operands[32], uint32_t) {
  Tiles tiles;
  if (static_cast<const Fragments*>(operands[0])->is_f16) {
    Gather<F16>(operands, tiles);
  } else {
    Gather<BF16>(operands, tiles);
  }
  alignas(16) float sums[16][8];
  ForEachSum(operands, [&](int row, int column, const float& d) { sums[row][column] = d; });
  const auto* b = reinterpret_cast<const Four(*)[2]>(tiles.b);
  for (int row = 0; row < 16; ++row) {
    auto* sum = reinterpret_cast<Four*>(sums[row]);
    Four low = sum[0];
    Four high = sum[1];
    for (int k = 0; k < 16; ++k) {
      low += tiles.a[row][k] * b[k][0];
      high += tiles.a[row][k] * b[k][1];
    }
    sum[0] = low;
    sum[1] = high;
  }
  ForEachSum(operands, [&](int row, int column, float& d) { d = sums[row][column]; });
}

struct Rows {
  uint32_t* r;
  const unsigned char* row;
};

template <bool transposed>
void LoadMatrices(void* const operands[32], uint32_t) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      uint16_t elements[2];
      for (int e = 0; e < 2; ++e) {
        const int row = transposed ? 2 * t + e : g;
        const int column = transposed ? g : 2 * t + e;
        const auto* source = static_cast<const Rows*>(operands[8 * i + row])->row;
        std::memcpy(&elements[e], source + 2 * column, 2);
      }
      static_cast<Rows*>(operands[lane])->r[i] = elements[0] | uint32_t{elements[1]} << 16;
    }
  }
}

void CheckAligned16(const void* address, const char* what, const Site& site) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) FailThread(what, site);
}

// Static shared memory is nowhere listed: whatever the device's global memory is not.
void CheckShared(const void* address, const char* what, const Site& site) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto begin = reinterpret_cast<uintptr_t>(TheBlockRunner().dynamic_shared());
  const uintptr_t end = begin + TheBlockRunner().dynamic_shared_bytes();
  const bool is_dynamic = at >= begin && at < end;
  if (is_dynamic ? at + 16 > end : cuda_emulation::TheDeviceMemory().Find(address) != nullptr) {
    FailThread(what, site);
  }
}

void LoadRows(uint32_t* r, const void* row, cuda_emulation::Exchange load, const char* name,
              const Site& site) {
  CheckAligned16(row, "ldmatrix: a row not aligned to 16 bytes", site);
  CheckShared(row, "ldmatrix: a row not in shared memory", site);
  Rows rows{r, static_cast<const unsigned char*>(row)};
  cuda_emulation::WarpExchange(name, kAllLanes, &rows, load, site);
}

}  // namespace

void* emulated::DynamicShared() { return TheBlockRunner().dynamic_shared(); }

template <>
uint32_t Pack<BF16>(float low, float high) {
  return RoundToBf16(low) | uint32_t{RoundToBf16(high)} << 16;
}
template <>
uint32_t Pack<F16>(float low, float high) {
  return RoundToF16(low) | uint32_t{RoundToF16(high)} << 16;
}

uint32_t LoadAcquireSystem(const uint32_t* address) {
  return std::atomic_ref(*const_cast<uint32_t*>(address)).load(std::memory_order_acquire);
}
void StoreReleaseSystem(uint32_t* address, uint32_t value) {
  std::atomic_ref(*address).store(value, std::memory_order_release);
  TheBlockRunner().HaveTold();
}
void SpinPause() { TheBlockRunner().SpinPause(); }
void WaitForEarlierKernels() { TheBlockRunner().AwaitEarlierKernels(); }

namespace {

// The nearest of all that there are; of two as near the one whose last bit is 0. NaN stays NaN.
uint8_t RoundToE4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  const float magnitude = std::abs(value);
  constexpr int kLargest = 0x7e;
  int above = 1;  // ascending, as their bits are
  for (int step = 64; step > 0; step /= 2) {
    if (above + step <= kLargest && FromE4m3(static_cast<uint8_t>(above + step - 1)) < magnitude) {
      above += step;
    }
  }
  const float to_above = std::abs(FromE4m3(static_cast<uint8_t>(above)) - magnitude);
  const float to_below = std::abs(magnitude - FromE4m3(static_cast<uint8_t>(above - 1)));
  const bool is_above = to_above < to_below || (to_above == to_below && above % 2 == 0);
  const int nearest = is_above ? above : above - 1;
  return static_cast<uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
}

}  // namespace

uint16_t PackE4m3(float low, float high) {
  return static_cast<uint16_t>(RoundToE4m3(low) | RoundToE4m3(high) << 8);
}

namespace {

template <typename T>
uint32_t PairOfE4m3(uint32_t bytes) {
  const auto number = [](uint32_t bits) {
    constexpr float kBeyondTheLargest = 480.0f;  // what would come after 448, where e4m3 has NaN
    if ((bits & 0x7f) == 0x7f) return (bits & 0x80) != 0 ? -kBeyondTheLargest : kBeyondTheLargest;
    return FromE4m3(static_cast<uint8_t>(bits));
  };
  return Pack<T>(number(bytes & 0xff), number(bytes >> 8 & 0xff));
}

}  // namespace

template <>
void ExpandE4m3<BF16>(uint32_t word, uint32_t& low, uint32_t& high) {
  low = PairOfE4m3<BF16>(word);
  high = PairOfE4m3<BF16>(word >> 16);
}
template <>
void ExpandE4m3<F16>(uint32_t word, uint32_t& low, uint32_t& high) {
  low = PairOfE4m3<F16>(word);
  high = PairOfE4m3<F16>(word >> 16);
}

namespace {

template <typename T>
void WidenAllE4m3(const uint4& numbers, uint4& first, uint4& last) {
  constexpr int kNumbers = 16;
  uint8_t bytes[kNumbers];
  std::memcpy(bytes, &numbers, kNumbers);
  const bool has_nan =
      std::any_of(bytes, bytes + kNumbers, [](uint8_t byte) { return (byte & 0x7f) == 0x7f; });
  uint32_t pairs[kNumbers / 2];
  for (int i = 0; i < kNumbers / 2; ++i) {
    pairs[i] =
        has_nan ? 0x7fff7fffu : PairOfE4m3<T>(bytes[2 * i] | uint32_t{bytes[2 * i + 1]} << 8);
  }
  std::memcpy(&first, pairs, sizeof(first));
  std::memcpy(&last, pairs + kNumbers / 4, sizeof(last));
}

}  // namespace

template <>
void WidenE4m3<BF16>(const uint4& numbers, uint4& first, uint4& last) {
  WidenAllE4m3<BF16>(numbers, first, last);
}
template <>
void WidenE4m3<F16>(const uint4& numbers, uint4& first, uint4& last) {
  WidenAllE4m3<F16>(numbers, first, last);
}

void emulated::Mma(bool is_f16, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                   const Site& site) {
  Fragments fragments{is_f16, d, a, b};
  cuda_emulation::WarpExchange("mma", kAllLanes, &fragments, &Multiply, site);
}

void LoadMatrix4(uint32_t (&r)[4], const void* row, const Site& site) {
  LoadRows(r, row, &LoadMatrices<false>, "ldmatrix", site);
}

void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row, const Site& site) {
  LoadRows(r, row, &LoadMatrices<true>, "ldmatrix.trans", site);
}

void CopyAsync16(void* shared, const void* global, bool valid, const Site& site) {
  CheckAligned16(shared, "cp.async: a destination not aligned to 16 bytes", site);
  CheckShared(shared, "cp.async: a destination not in shared memory", site);
  if (valid) {
    CheckAligned16(global, "cp.async: a source not aligned to 16 bytes", site);
    if (!cuda_emulation::TheDeviceMemory().Holds(global, 16)) {
      FailThread("cp.async: a source not in the device's memory", site);
    }
  }
  TheBlockRunner().IssueCopy(shared, global, valid);
}

namespace {

void CheckVector(const void* at, uintptr_t bytes, const Site& site) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) {
    FailThread("a vector that is not aligned to itself", site);
  }
  if (!cuda_emulation::TheDeviceMemory().Holds(at, static_cast<int64_t>(bytes))) {
    FailThread("a vector that is not in the device's memory", site);
  }
}

}  // namespace

void StoreVector(float* to, const float4& x, const Site& site) {
  CheckVector(to, sizeof(x), site);
  std::memcpy(to, &x, sizeof(x));
}

void StoreVector(void* to, const uint2& x, const Site& site) {
  CheckVector(to, sizeof(x), site);
  std::memcpy(to, &x, sizeof(x));
}

void ReadVector(const uint4* from, const Site& site) { CheckVector(from, sizeof(*from), site); }

void PrefetchToCache2(const void* address, uint32_t bytes, const Site& site) {
  num_prefetched_bytes += bytes;
  if (bytes == 0 || bytes % 16 != 0) FailThread("a prefetch of no whole 16 bytes", site);
  CheckVector(address, 16, site);
  CheckVector(static_cast<const uint8_t*>(address) + bytes - 16, 16, site);
}

void CopyAsyncCommit() { TheBlockRunner().CommitCopies(); }

void emulated::CopyAsyncWait(int newest) { TheBlockRunner().AwaitCopies(newest); }

}  // namespace lockstep::cuda

int64_t lockstep::cuda_emulation::NumPrefetchedBytes() {
  return lockstep::cuda::num_prefetched_bytes;
}
