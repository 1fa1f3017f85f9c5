#include "kernels/cpu/cpu_features.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <array>
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
  tables.Add(kAvx512VnniKernels);
  if (__builtin_cpu_supports("avx512bf16") && PairsFollowTheContract(kAvx512Bf16Kernels)) {
    tables.Add(kAvx512Bf16Kernels);
    if (__builtin_cpu_supports("amx-int8") && MayUseTiles() &&
        MultiplyAlike(kAmxQuantized, kAvx512VnniQuantized)) {
      tables.Add(kAmxKernels);
    }
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
