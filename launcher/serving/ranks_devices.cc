#include "launcher/serving/ranks_devices.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/accelerator.h"
#include "kernels/base/available_memory.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/host_name.h"
#include "launcher/ranks/device_choice.h"
#include "launcher/serving/launch_plan.h"
#include "model/llama/weights.h"
#include "parallel/gpu_places.h"

namespace lockstep {
namespace {

using Kind = RanksDevices::Kind;

std::span<const AcceleratorInfo> WithRanks(const std::vector<AcceleratorInfo>& gpus,
                                           int ranks_per_host) {
  return std::span(gpus).first(std::min(gpus.size(), static_cast<size_t>(ranks_per_host)));
}

absl::Status NotOnCpus(const RanksDevices& devices, const char* why) {
  if (devices.why_no_gpus.empty()) return absl::InvalidArgumentError(why);
  return absl::FailedPreconditionError(absl::StrCat(why, devices.why_no_gpus));
}

}  // namespace

int64_t MemoryOfGpus(const std::vector<AcceleratorInfo>& gpus, int ranks_per_host, int num_hosts,
                     double gpu_memory_utilization) {
  double bytes = 0;
  for (const AcceleratorInfo& gpu : WithRanks(gpus, ranks_per_host)) {
    bytes += static_cast<double>(gpu.memory_bytes);
  }
  return static_cast<int64_t>(bytes * gpu_memory_utilization * num_hosts);
}

absl::Status CheckGpusOfThisHost(const std::vector<AcceleratorInfo>& gpus, int num_ranks,
                                 bool may_share) {
  for (const AcceleratorInfo& gpu : WithRanks(gpus, num_ranks)) {
    if (gpu.refusal.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", &gpu - gpus.data(), " (", gpu.pci_bus_id, "), on which a rank would be: ",
        gpu.refusal, "; let ranks see others only (CUDA_VISIBLE_DEVICES), or --device cpu"));
  }
  RankGpus rank{.node = 0, .host = HostName(), .place = {0, num_ranks}, .gpus = {}};
  for (const AcceleratorInfo& gpu : gpus) rank.gpus.push_back({gpu.uuid, gpu.pci_bus_id});
  std::vector<RankGpus> ranks;
  for (; rank.place.place < num_ranks; ++rank.place.place) ranks.push_back(rank);
  return CheckSharing(ranks, may_share);
}

absl::StatusOr<RanksDevices> DevicesOf(const RankFlags& rank, const LaunchPlan& launch) {
  RanksDevices devices;
  if (!launch.uses_this_host) {
    if (rank.device != "cpu") devices.kind = rank.device == "auto" ? Kind::kEither : Kind::kGpus;
    devices.multiply_fp8 = devices.may_be_gpus();
    devices.memory_bytes = int64_t{1} << 60;
    return devices;
  }
  ASSIGN_OR_RETURN(const DeviceSearch search, GpusFor(rank.device));
  if (!search.gpus.has_value()) {
    if (!search.why_none.ok()) {
      devices.why_no_gpus = absl::StrCat("; no GPU is used: ", search.why_none.message());
    }
    devices.memory_bytes = AvailableMemoryBytes() * launch.num_hosts();
    return devices;
  }
  const std::vector<AcceleratorInfo>& gpus = search.gpus->gpus;
  if (launch.kind == LaunchPlan::Kind::kThisHost) {  // elsewhere ranks may see others
    RETURN_IF_ERROR(CheckGpusOfThisHost(gpus, launch.max_ranks_per_host(), rank.shares_gpus));
  }
  devices.kind = Kind::kGpus;
  devices.multiply_fp8 = std::all_of(gpus.begin(), gpus.end(),
                                     [](const AcceleratorInfo& gpu) { return gpu.multiplies_fp8; });
  devices.name = gpus.front().name;
  devices.memory_bytes = MemoryOfGpus(gpus, launch.max_ranks_per_host(), launch.num_hosts(),
                                      rank.gpu_memory_utilization);
  return devices;
}

absl::Status CheckFormats(const ModelFlags& model, const RankFlags& rank,
                          const RanksDevices& devices) {
  if (model.quantize == "fp8" && !devices.multiply_fp8) {
    if (!devices.may_be_gpus()) {
      return NotOnCpus(
          devices, "--quantize fp8 is for GPUs (--device cuda); CPUs compute with int8 and int4");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--quantize fp8 is for GPUs of compute capability 8.9 or later; ",
                     devices.name, " cannot multiply e4m3"));
  }
  if (!devices.may_be_gpus() && rank.dtype == "f16") return NotOnCpus(devices, kNoF16OnCpus);
  return absl::OkStatus();
}

}  // namespace lockstep
