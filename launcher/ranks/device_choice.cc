#include "launcher/ranks/device_choice.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/values.h"
#include "launcher/ranks/rank_gpus_text.h"

namespace lockstep {
namespace {

std::vector<SeenGpu> Seen(const std::vector<AcceleratorInfo>& gpus) {
  std::vector<SeenGpu> seen;
  for (const AcceleratorInfo& gpu : gpus) seen.push_back({gpu.uuid, gpu.pci_bus_id});
  return seen;
}

}  // namespace

std::string DeviceSearch::LeftAlone() const {
  if (why_none.ok() || absl::IsNotFound(why_none)) return "";
  return absl::StrCat("GPUs are left alone: ", why_none.message());
}

absl::StatusOr<DeviceSearch> GpusFor(const std::string& device) {
  DeviceSearch search;
  if (device == "cpu") return search;
  absl::StatusOr<GpusHere> gpus = FindGpus();
  if (gpus.ok()) {
    search.gpus = *std::move(gpus);
  } else if (device == "auto") {
    search.why_none = gpus.status();
  } else {
    return gpus.status();
  }
  return search;
}

absl::StatusOr<DeviceOptions> DeviceOf(const RankFlags& flags, const MpiSession& session,
                                       std::optional<HostPlace> place, const Notice& notice) {
  RankGpus mine{
      .node = session.node(),
      .host = HostName(),
      .place = place.value_or(HostPlace{session.rank_on_node(), session.num_ranks_on_node()}),
      .gpus = {}};
  ASSIGN_OR_RETURN(const DeviceSearch search, GpusFor(flags.device));
  if (search.gpus.has_value()) mine.gpus = Seen(search.gpus->gpus);
  mine.why_none = OneLine(search.why_none.message());
  const std::string left_alone = search.LeftAlone();
  if (!left_alone.empty() && notice != nullptr) notice(left_alone);
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, session.AllGather(FormatRankGpus(mine)));
  ASSIGN_OR_RETURN(const std::vector<RankGpus> ranks, ParseRankGpus(texts));
  DeviceOptions device;
  ASSIGN_OR_RETURN(device.gpu, PlaceOnGpu(ranks, session.rank()));
  RETURN_IF_ERROR(CheckSharing(ranks, flags.shares_gpus));
  device.cpu = {ThreadsPerRank(flags, session.num_ranks_on_node(), session.num_cores_on_node()),
                flags.isa};
  device.gpu_memory_utilization = flags.gpu_memory_utilization;
  device.deterministic = flags.deterministic;
  return device;
}

}  // namespace lockstep
