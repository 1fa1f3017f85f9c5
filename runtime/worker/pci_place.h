// Where a device lies in its host, as Linux tells it.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

struct PciPlace {
  int numa_node = -1;        // -1: not known
  std::string nearest_nic;   // with a link: "mlx5_0" of InfiniBand, else "eth0"; empty: none
  std::string nic_distance;  // "same PCIe switch", "same PCIe root", "same NUMA node", "far"
  std::string idle_nic;      // as near as none with a link, but without one; empty: none
};

// bus_id: "0000:1b:00.0". sysfs: "/sys", or what a test made. A device that is not there, as in
// some containers, has an unknown place. Source: Documentation/ABI/testing/sysfs-bus-pci; a class's
// `device` is a link to the device; sysfs-class-infiniband, sysfs-class-net.
PciPlace FindPciPlace(const std::filesystem::path& sysfs, const std::string& bus_id);

}  // namespace lockstep
