#include "launcher/serving/gpu_summary.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using Checks = std::map<int, ControllerEvent>;

constexpr size_t kMaxPairsShown = 8;

const char* NameOf(DeviceLink link) {
  switch (link) {
    case DeviceLink::kNvLink:
      return "NVLink";
    case DeviceLink::kPeerAccess:
      return "peer access";
    case DeviceLink::kNone:
      break;
  }
  return "no peer access";
}

std::string Show(int rank, const ControllerEvent& event) {
  const RankCheck::Gpu& gpu = *event.check.gpu;
  std::string text =
      absl::StrCat("rank ", rank, " on ", event.host, ": GPU ", gpu.index, ", ", gpu.name, ", ",
                   FormatBytes(gpu.memory_bytes), ", ", gpu.pci_bus_id);
  if (gpu.numa_node >= 0) absl::StrAppend(&text, ", NUMA node ", gpu.numa_node);
  if (!gpu.nearest_nic.empty()) {
    absl::StrAppend(&text, ", NIC ", gpu.nearest_nic, " (", gpu.nic_distance, ")");
  }
  if (!gpu.idle_nic.empty()) {
    absl::StrAppend(&text, ", no link on ", gpu.idle_nic,
                    gpu.nearest_nic.empty() ? "" : ", which is nearer");
  }
  return OneLine(text);
}

// Between the GPUs of two ranks of one host; nothing for one GPU, and where it is not known.
std::optional<DeviceLink> LinkBetween(const ControllerEvent& a, const ControllerEvent& b) {
  if (!a.check.gpu || !b.check.gpu || a.check.node != b.check.node) return std::nullopt;
  const auto link = a.check.gpu->links.find(b.check.gpu->pci_bus_id);
  if (link == a.check.gpu->links.end()) return std::nullopt;
  return link->second;
}

using Pair = std::pair<int, int>;  // of ranks
std::map<DeviceLink, std::vector<Pair>> PairsByLink(const Checks& checks) {
  std::map<DeviceLink, std::vector<Pair>> pairs;
  for (auto a = checks.begin(); a != checks.end(); ++a) {
    for (auto b = std::next(a); b != checks.end(); ++b) {
      const std::optional<DeviceLink> link = LinkBetween(a->second, b->second);
      if (link) pairs[*link].emplace_back(a->first, b->first);
    }
  }
  return pairs;
}

std::string ShowPairs(const std::vector<Pair>& pairs) {
  std::vector<std::string> shown;
  for (const auto& [a, b] : pairs) {
    if (shown.size() == kMaxPairsShown) {
      shown.push_back(absl::StrCat(pairs.size() - kMaxPairsShown, " more pairs"));
      break;
    }
    shown.push_back(absl::StrCat(a, "-", b));
  }
  return absl::StrJoin(shown, ", ");
}

}  // namespace

std::vector<std::string> GpuLines(const Checks& checks) {
  std::vector<std::string> lines;
  for (const auto& [rank, event] : checks) {
    if (!event.check.gpu) continue;
    lines.push_back(absl::StrCat(lines.empty() ? "GPUs     " : "         ", Show(rank, event)));
  }
  const std::map<DeviceLink, std::vector<Pair>> pairs = PairsByLink(checks);
  for (const auto& [link, of_link] : pairs) {
    const std::string which =
        pairs.size() == 1 ? "all of a host" : absl::StrCat("ranks ", ShowPairs(of_link));
    lines.push_back(absl::StrCat("         between ", which, ": ", NameOf(link)));
  }
  return lines;
}

Json GpusJson(const Checks& checks) {
  Json gpus = Json::array();
  for (const auto& [rank, event] : checks) {
    if (!event.check.gpu) continue;
    const RankCheck::Gpu& gpu = *event.check.gpu;
    Json links = Json::object();
    for (const auto& [bus_id, link] : gpu.links) links[ValidUtf8(bus_id)] = NameOf(link);
    gpus.push_back({{"rank", rank},
                    {"index", gpu.index},
                    {"name", ValidUtf8(gpu.name)},
                    {"memory_bytes", gpu.memory_bytes},
                    {"pci_bus_id", ValidUtf8(gpu.pci_bus_id)},
                    {"numa_node", gpu.numa_node},
                    {"nearest_nic", ValidUtf8(gpu.nearest_nic)},
                    {"nic_distance", ValidUtf8(gpu.nic_distance)},
                    {"idle_nic", ValidUtf8(gpu.idle_nic)},
                    {"links", std::move(links)}});
  }
  return gpus;
}

std::string MemoryLine(const std::map<int, ControllerEvent>& rehearsals) {
  const auto left = [](const auto& entry) {
    const std::optional<RankMemory>& memory = entry.second.memory;
    return memory.has_value() ? memory->device.left_bytes : std::numeric_limits<int64_t>::max();
  };
  const auto fullest =
      std::min_element(rehearsals.begin(), rehearsals.end(),
                       [&](const auto& a, const auto& b) { return left(a) < left(b); });
  if (fullest == rehearsals.end() || !fullest->second.memory.has_value()) return "";
  const RankMemory& memory = *fullest->second.memory;
  const DeviceMemory& device = memory.device;
  const std::string others =
      device.other_bytes > 0
          ? absl::StrCat(FormatBytes(device.other_bytes), " for libraries and recorded steps, ")
          : "";
  return absl::StrCat(
      "Memory   rank ", fullest->first, " may fill ", FormatBytes(device.budget_bytes),
      " of its GPU: ", FormatBytes(memory.weight_bytes), " of weights, ",
      FormatBytes(memory.step_bytes()), " for steps, ", others,
      FormatBytes(std::max<int64_t>(device.left_bytes, 0)), " left for the KV cache",
      device.is_limited_by_others()
          ? absl::StrCat("; other programs and the driver hold ", FormatBytes(device.foreign_bytes),
                         ": see nvidia-smi")
          : "");
}

Json RehearsalJson(const ControllerEvent& event) {
  Json json = {{"replica", event.replica}, {"rank", event.rank}};
  if (!event.memory.has_value()) return json;
  const DeviceMemory& device = event.memory->device;
  json["gpu_memory"] = {{"total_bytes", device.total_bytes},
                        {"budget_bytes", device.budget_bytes},
                        {"weight_bytes", event.memory->weight_bytes},
                        {"step_bytes", event.memory->step_bytes()},
                        {"other_bytes", device.other_bytes},
                        {"foreign_bytes", device.foreign_bytes},
                        {"left_bytes", device.left_bytes}};
  return json;
}

std::vector<std::string> GpuWarnings(int tp, const Checks& checks) {
  std::vector<std::string> warnings;
  int warned_stage = -1;
  const auto pairs = PairsByLink(checks);
  const auto without = pairs.find(DeviceLink::kNone);
  if (without == pairs.end()) return warnings;
  for (const auto& [a, b] : without->second) {
    const int stage = a / tp;
    if (stage != b / tp || stage == warned_stage) continue;
    warned_stage = stage;
    const ControllerEvent& first = checks.at(a);
    warnings.push_back(absl::StrCat(
        "the GPUs of ranks ", a, " and ", b, " on ", first.host, " (", first.check.gpu->pci_bus_id,
        ", ", checks.at(b).check.gpu->pci_bus_id, ") have no peer access to each other: stage ",
        stage,
        " adds up through the host's memory, which is slow; does nvidia-smi topo -p2p r say why?"));
  }
  return warnings;
}

}  // namespace lockstep
