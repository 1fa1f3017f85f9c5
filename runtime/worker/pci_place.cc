#include "runtime/worker/pci_place.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <tuple>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

enum class Distance { kSwitch, kRoot, kNumaNode, kFar };

const char* TextOf(Distance distance) {
  switch (distance) {
    case Distance::kSwitch:
      return "same PCIe switch";
    case Distance::kRoot:
      return "same PCIe root";
    case Distance::kNumaNode:
      return "same NUMA node";
    case Distance::kFar:
      break;
  }
  return "far";
}

// From the root complex down: "pci0000:16", "0000:16:01.0", ..., the device itself.
std::vector<std::string> PathOf(const fs::path& device) {
  std::error_code error;
  const fs::path whole = fs::canonical(device, error);
  std::vector<std::string> path(whole.begin(), whole.end());
  path.erase(path.begin(), std::find_if(path.begin(), path.end(), [](const std::string& part) {
               return part.starts_with("pci");
             }));
  return path;
}

int NumaNodeOf(const fs::path& device) {
  int node = -1;
  std::ifstream(device / "numa_node") >> node;
  return std::max(node, -1);
}

struct Place {
  std::vector<std::string> path;
  int numa_node;
};

// How many parts of their paths two devices share.
size_t NumShared(const Place& a, const Place& b) {
  const auto [end, other] =
      std::mismatch(a.path.begin(), a.path.end(), b.path.begin(), b.path.end());
  return static_cast<size_t>(end - a.path.begin());
}

// The root complex is the first part, its port the second: what two devices share below it are
// switches.
Distance DistanceOf(const Place& a, const Place& b) {
  const size_t shared = NumShared(a, b);
  if (shared > 1) return Distance::kSwitch;
  if (shared == 1) return Distance::kRoot;
  return a.numa_node >= 0 && a.numa_node == b.numa_node ? Distance::kNumaNode : Distance::kFar;
}

// Network devices of a class that have hardware, by name.
std::vector<fs::path> DevicesOf(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> devices;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (fs::exists(entry.path() / "device", error)) devices.push_back(entry.path());
  }
  std::sort(devices.begin(), devices.end());
  return devices;
}

}  // namespace

PciPlace FindPciPlace(const fs::path& sysfs, const std::string& bus_id) {
  const fs::path device = sysfs / "bus" / "pci" / "devices" / bus_id;
  std::error_code error;
  PciPlace found;
  if (bus_id.empty() || !fs::exists(device, error)) return found;
  const Place mine = {PathOf(device), NumaNodeOf(device)};
  found.numa_node = mine.numa_node;
  std::vector<fs::path> nics = DevicesOf(sysfs / "class" / "infiniband");
  if (nics.empty()) nics = DevicesOf(sysfs / "class" / "net");
  // Of those as near, the one with the longest way in common; the first by name.
  std::tuple<Distance, int64_t> nearest;
  for (const fs::path& nic : nics) {
    const Place place = {PathOf(nic / "device"), NumaNodeOf(nic / "device")};
    const Distance distance = DistanceOf(mine, place);
    const std::tuple candidate(distance, -static_cast<int64_t>(NumShared(mine, place)));
    if (!found.nearest_nic.empty() && candidate >= nearest) continue;
    nearest = candidate;
    found.nearest_nic = nic.filename();
    found.nic_distance = TextOf(distance);
  }
  return found;
}

}  // namespace lockstep
