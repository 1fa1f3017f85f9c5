#include "runtime/worker/pci_place.h"

#include <algorithm>
#include <fstream>
#include <functional>
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

std::string WordIn(const fs::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// Where nothing is told, it is taken to have one.
bool HasLink(const fs::path& nic) {
  bool has_ports = false;
  std::error_code error;
  for (const fs::directory_entry& port : fs::directory_iterator(nic / "ports", error)) {
    if (WordIn(port.path() / "state") == "4:") return true;  // "4: ACTIVE"
    has_ports = true;
  }
  const std::string state = WordIn(nic / "operstate");
  return !has_ports && state != "down" && state != "lowerlayerdown" && state != "notpresent";
}

struct Nic {
  // Less is nearer: of those in the same distance, the one that shares the longest way.
  std::tuple<Distance, int64_t> way;
  fs::path path;
  bool has_link;
};

// Network devices of a class that have hardware, the nearest first; those as near by name.
std::vector<Nic> NicsOf(const fs::path& directory, const Place& mine) {
  std::error_code error;
  std::vector<Nic> nics;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const fs::path device = entry.path() / "device";
    if (!fs::exists(device, error)) continue;
    const Place place = {PathOf(device), NumaNodeOf(device)};
    nics.push_back({.way = {DistanceOf(mine, place), -static_cast<int64_t>(NumShared(mine, place))},
                    .path = entry.path(),
                    .has_link = HasLink(entry.path())});
  }
  std::sort(nics.begin(), nics.end(), [](const Nic& a, const Nic& b) {
    return std::tie(a.way, a.path) < std::tie(b.way, b.path);
  });
  return nics;
}

// The nearest that has a link; nothing where none has.
const Nic* NearestOf(const std::vector<Nic>& nics) {
  const auto nearest = std::find_if(nics.begin(), nics.end(), std::mem_fn(&Nic::has_link));
  return nearest == nics.end() ? nullptr : &*nearest;
}

}  // namespace

PciPlace FindPciPlace(const fs::path& sysfs, const std::string& bus_id) {
  const fs::path device = sysfs / "bus" / "pci" / "devices" / bus_id;
  std::error_code error;
  PciPlace found;
  if (bus_id.empty() || !fs::exists(device, error)) return found;
  const Place mine = {PathOf(device), NumaNodeOf(device)};
  found.numa_node = mine.numa_node;
  const std::vector<Nic> infiniband = NicsOf(sysfs / "class" / "infiniband", mine);
  const std::vector<Nic> ethernet = NicsOf(sysfs / "class" / "net", mine);
  const Nic* nearest = NearestOf(infiniband);
  if (nearest == nullptr) nearest = NearestOf(ethernet);
  if (nearest != nullptr) {
    found.nearest_nic = nearest->path.filename();
    found.nic_distance = TextOf(std::get<Distance>(nearest->way));
  }
  const std::vector<Nic>& expected = infiniband.empty() ? ethernet : infiniband;
  if (!expected.empty() && !expected.front().has_link &&
      (nearest == nullptr || expected.front().way < nearest->way)) {
    found.idle_nic = expected.front().path.filename();
  }
  return found;
}

}  // namespace lockstep
