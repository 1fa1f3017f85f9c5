#include "runtime/controller/rank_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

// Bytes and block counts beyond this are nonsense; sums of two stay inside int64.
constexpr int64_t kMaxCount = int64_t{1} << 60;
constexpr size_t kMaxGpuTextBytes = 255;
constexpr int kMaxGpuLinks = 64;
constexpr size_t kMaxDTypeBytes = 64;

}  // namespace

absl::Status CheckCount(absl::string_view field, int64_t value, int64_t low) {
  if (value >= low && value <= kMaxCount) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " ", value, " is outside [", low, ", ", kMaxCount, "]"));
}

absl::Status CheckKvBlocks(absl::string_view name, int64_t blocks) {
  RETURN_IF_ERROR(CheckCount(name, blocks));
  if (blocks <= kMaxKvBlocks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", blocks, " is more than ", kMaxKvBlocks));
}

namespace {

absl::Status CheckGpuMemory(const v1::GpuMemory& memory) {
  RETURN_IF_ERROR(CheckCount("GpuMemory.total_bytes", memory.total_bytes()));
  RETURN_IF_ERROR(CheckCount("GpuMemory.budget_bytes", memory.budget_bytes()));
  RETURN_IF_ERROR(CheckCount("GpuMemory.weight_bytes", memory.weight_bytes()));
  RETURN_IF_ERROR(CheckCount("GpuMemory.step_bytes", memory.step_bytes()));
  RETURN_IF_ERROR(CheckCount("GpuMemory.other_bytes", memory.other_bytes()));
  RETURN_IF_ERROR(CheckCount("GpuMemory.foreign_bytes", memory.foreign_bytes()));
  RETURN_IF_ERROR(CheckCount("GpuMemory.batched_token_bytes", memory.batched_token_bytes()));
  return CheckCount("GpuMemory.left_bytes", memory.left_bytes(), -kMaxCount);
}

}  // namespace

absl::Status CheckNumerics(const v1::Numerics& numerics) {
  if (numerics.device() != "cpu" && numerics.device() != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("Numerics.device is \"",
                                                   numerics.device().substr(0, kMaxDTypeBytes),
                                                   "\", must be cpu or cuda"));
  }
  if (numerics.dtype().empty() || numerics.dtype().size() > kMaxDTypeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("Numerics.dtype has ", numerics.dtype().size(),
                                                   " bytes, must have 1 to ", kMaxDTypeBytes));
  }
  if (numerics.gpu().size() <= kMaxGpuTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Numerics.gpu has ", numerics.gpu().size(),
                                                 " bytes, at most ", kMaxGpuTextBytes));
}

namespace {

absl::Status CheckSameFact(absl::string_view fact, absl::string_view value, absl::string_view other,
                           absl::string_view whose) {
  if (value == other) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      fact, " ", value, " does not match ", whose, " ", other,
      ": all ranks of a controller must compute alike, as requests move between them"));
}

const char* OnOrOff(bool on) { return on ? "on" : "off"; }

}  // namespace

absl::Status CheckSameNumerics(const v1::Numerics& numerics, const v1::Numerics& other,
                               absl::string_view whose) {
  RETURN_IF_ERROR(CheckSameFact("device", numerics.device(), other.device(), whose));
  RETURN_IF_ERROR(CheckSameFact("dtype", numerics.dtype(), other.dtype(), whose));
  RETURN_IF_ERROR(CheckSameFact("--deterministic", OnOrOff(numerics.deterministic()),
                                OnOrOff(other.deterministic()), whose));
  if (!numerics.deterministic()) return absl::OkStatus();
  return CheckSameFact("with --deterministic the GPU", numerics.gpu(), other.gpu(), whose);
}

absl::Status CheckGpu(const v1::Gpu& gpu) {
  RETURN_IF_ERROR(CheckCount("Gpu.index", gpu.index()));
  RETURN_IF_ERROR(CheckCount("Gpu.memory_bytes", gpu.memory_bytes()));
  RETURN_IF_ERROR(CheckCount("Gpu.numa_node", gpu.numa_node(), -1));
  size_t longest = std::max({gpu.name().size(), gpu.pci_bus_id().size(), gpu.nearest_nic().size(),
                             gpu.nic_distance().size(), gpu.idle_nic().size()});
  for (const v1::GpuLink& link : gpu.links()) {
    longest = std::max(longest, link.pci_bus_id().size());
    if (!v1::GpuLink::Kind_IsValid(link.kind())) {
      return absl::InvalidArgumentError(absl::StrCat("GpuLink.kind is ", link.kind()));
    }
  }
  if (longest > kMaxGpuTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a text of Gpu has ", longest, " bytes, at most ", kMaxGpuTextBytes));
  }
  if (gpu.links_size() > kMaxGpuLinks) {
    return absl::InvalidArgumentError(
        absl::StrCat("Gpu has ", gpu.links_size(), " links, at most ", kMaxGpuLinks));
  }
  return absl::OkStatus();
}

absl::Status CheckKvRoom(const v1::KvRoom& room) {
  RETURN_IF_ERROR(CheckKvBlocks("KvRoom.max_kv_blocks", room.max_kv_blocks()));
  RETURN_IF_ERROR(CheckKvBlocks("KvRoom.most_kv_blocks", room.most_kv_blocks()));
  if (room.most_kv_blocks() >= room.max_kv_blocks()) return CheckGpuMemory(room.memory());
  return absl::InvalidArgumentError(absl::StrCat("KvRoom.most_kv_blocks ", room.most_kv_blocks(),
                                                 " is less than max_kv_blocks ",
                                                 room.max_kv_blocks()));
}

}  // namespace lockstep
