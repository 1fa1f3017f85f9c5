#include "kernels/cpu/cpu_features.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/quantized_check.h"
#include "kernels/dtype.h"

namespace lockstep::cpu {
namespace {

constexpr int kMaxTables = 7;

struct Tables {
  std::array<const VectorKernels*, kMaxTables> table = {};
  size_t count = 0;
  void Add(const VectorKernels& kernels) { table[count++] = &kernels; }
};

#if defined(__x86_64__)
// Everything here rests on the order of vdpbf16ps (odd product, rounding, even product, rounding),
// and makers' manuals leave room for another. So it is asked: 1 + 2^-24 (1 + 2^-6) rounds up to 1 +
// 2^-23, from where + 2^-24 is a tie that rounds to 1 + 2^-22; the other order, or one rounding for
// both, ends at 1 + 2^-23.
bool PairsFollowTheContract(const VectorKernels& kernels) {
  constexpr float kOnes[2] = {1.0f, 1.0f};
  alignas(64) uint16_t panel[kMaxPanelColumns * 2];
  for (int i = 0; i < kMaxPanelColumns; ++i) {
    panel[2 * i] = ToBF16(0x1p-24f).bits;
    panel[2 * i + 1] = ToBF16(0x1.04p-24f).bits;
  }
  alignas(64) float c[kMaxPanelColumns];
  for (float& element : c) element = 1.0f;
  alignas(64) uint32_t row[2];
  kernels.pack_bf16(kOnes, 2, 1, 2, row);
  GemmBlock block = {};
  block.rows = row;
  block.num_rows = 1;
  block.tile_rows = 1;
  block.panels = panel;
  block.num_panels = 1;
  block.fresh = false;
  block.num_k = 2;
  block.c = c;
  kernels.gemm_bf16(block);
  for (const float element : c) {
    if (element != 1.0f + 0x1p-22f) return false;
  }
  return true;
}

// Seconds that a tile of products takes from the first-level cache.
class PairSpeed {
 public:
  explicit PairSpeed(const VectorKernels& kernels) : kernels_(kernels) {
    for (float& x : x_) x = 1.0f;
    for (uint16_t& weight : panel_) weight = ToBF16(1.0f).bits;
    kernels.pack_bf16(x_, kK, kRows, kK, rows_);
    block_.rows = rows_;
    block_.tile_rows = kRows;
    block_.num_rows = kRows;
    block_.num_k = kK;
    block_.panels = panel_;
    block_.num_panels = 1;
    block_.c = c_;
    block_.fresh = true;
  }

  void Run() {
    const auto begin = std::chrono::steady_clock::now();
    kernels_.gemm_bf16(block_);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    least_ = std::min(least_, taken.count());
  }
  double least() const { return least_; }

 private:
  static constexpr int kRows = 12;
  static constexpr int64_t kK = 128;

  const VectorKernels& kernels_;
  GemmBlock block_ = {};
  float x_[kRows * kK];
  alignas(64) float rows_[kRows * kK];
  alignas(64) uint16_t panel_[kMaxPanelColumns * kK];
  alignas(64) float c_[kRows * kMaxPanelColumns];
  double least_ = std::numeric_limits<double>::infinity();
};

// Does vdpbf16ps take less time than the two multiply-adds that it stands for? Both give the same
// bits. Seen: twice their rate on AMD's Zen 5, less than half of it on Intel's Sapphire Rapids (84
// GFLOP/s a core where multiply-adds reach 184).
bool PairsPay() {
  constexpr int kRuns = 32;  // some microseconds each; the fastest counts
  PairSpeed pairs(kAvx512Bf16Kernels);
  PairSpeed multiply_adds(kAvx512VnniKernels);
  for (int run = 0; run < kRuns; ++run) {
    pairs.Run();
    multiply_adds.Run();
  }
  return pairs.least() <= multiply_adds.least();
}

// Linux gives a process the tile registers, which its threads then have, when it asks
// (Documentation/arch/x86/xstate.rst).
bool MayUseTiles() {
#if defined(__linux__)
  constexpr int kRequestComponent = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestComponent, kTileData) == 0;
#else
  return false;
#endif
}

// __builtin_cpu_supports asks CPUID and, for the wide registers, whether the operating system saves
// them (XGETBV).
void AddX86Tables(Tables& tables) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
  tables.Add(kAvx2Kernels);
  if (__builtin_cpu_supports("avxvnni")) tables.Add(kAvxVnniKernels);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return;
  }
  tables.Add(kAvx512Kernels);
  if (!__builtin_cpu_supports("avx512vnni")) return;
  const bool has_pairs =
      __builtin_cpu_supports("avx512bf16") && PairsFollowTheContract(kAvx512Bf16Kernels);
  const bool pairs_pay = has_pairs && PairsPay();
  if (has_pairs && !pairs_pay) tables.Add(kAvx512Bf16Kernels);
  tables.Add(kAvx512VnniKernels);
  if (pairs_pay) tables.Add(kAvx512Bf16Kernels);
  if (__builtin_cpu_supports("amx-int8") && MayUseTiles() &&
      MultiplyAlike(kAmxQuantized, kAvx512VnniQuantized)) {
    tables.Add(pairs_pay ? kAmxPairsKernels : kAmxKernels);
  }
}
#endif

Tables DetectTables() {
  Tables tables;
  tables.Add(kScalarKernels);
#if defined(__x86_64__)
  AddX86Tables(tables);
#endif
  return tables;
}

}  // namespace

std::span<const VectorKernels* const> AvailableKernels() {
  static const Tables tables = DetectTables();
  return {tables.table.data(), tables.count};
}

absl::StatusOr<const VectorKernels*> FindKernels(const std::string& isa) {
  const auto available = AvailableKernels();
  if (isa == "auto") return available.back();
  std::string names = "auto";
  for (const VectorKernels* kernels : available) {
    if (isa == kernels->name) return kernels;
    absl::StrAppend(&names, ", ", kernels->name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("instruction set '", isa,
                   "' is unknown or not available on this processor; available: ", names));
}

}  // namespace lockstep::cpu
