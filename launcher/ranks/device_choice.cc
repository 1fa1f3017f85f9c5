#include "launcher/ranks/device_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "launcher/base/host_name.h"
#include "launcher/cli/values.h"
#include "launcher/ranks/mpi_rank.h"
#include "launcher/ranks/rank_gpus_text.h"
#include "runtime/worker/pci_place.h"

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

absl::StatusOr<std::vector<int>> GpuNodes(std::span<const RankGpus> ranks, int rank,
                                          const std::filesystem::path& sysfs) {
  const RankGpus& mine = ranks[static_cast<size_t>(rank)];
  std::vector<RankGpus> here(static_cast<size_t>(mine.place.num_ranks), mine);
  for (size_t place = 0; place < here.size(); ++place) {
    here[place].place.place = static_cast<int>(place);
  }
  for (const RankGpus& other : ranks) {
    // Hosts that a launcher knows by two names count their places apart.
    const bool is_counted_alike = other.place.num_ranks == mine.place.num_ranks;
    if (other.node != mine.node || !is_counted_alike) continue;
    here[static_cast<size_t>(other.place.place)] = other;
  }
  std::vector<int> nodes;
  for (size_t place = 0; place < here.size(); ++place) {
    ASSIGN_OR_RETURN(const std::optional<GpuPlace> gpu, PlaceOnGpu(here, static_cast<int>(place)));
    nodes.push_back(-1);
    if (!gpu.has_value()) continue;
    const SeenGpu& seen = here[place].gpus[static_cast<size_t>(gpu->gpu)];
    nodes.back() = FindPciPlace(sysfs, seen.bus_id).numa_node;
  }
  return nodes;
}

absl::StatusOr<DeviceOptions> TakeDevice(const RankFlags& flags, const MpiSession& session,
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
  // Of all jobs, as far as the launcher knows that hosts of two names are one.
  const int num_ranks = std::max(mine.place.num_ranks, session.num_ranks_on_node());
  device.cpu = {ThreadsPerRank(flags, num_ranks, session.num_cores_on_node()), flags.isa};
  if (!flags.shares_cores) {
    ASSIGN_OR_RETURN(const std::vector<int> nodes, GpuNodes(ranks, session.rank(), "/sys"));
    const int num_cores = KeepToOwnCores(session, mine.place.place, nodes);
    if (flags.threads == 0 && num_cores > 0) {
      device.cpu.num_threads = std::min(device.cpu.num_threads, num_cores);
    }
  }
  device.gpu_memory_utilization = flags.gpu_memory_utilization;
  device.deterministic = flags.deterministic;
  return device;
}

}  // namespace lockstep
