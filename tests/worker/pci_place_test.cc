#include "runtime/worker/pci_place.h"

#include <unistd.h>

#include <fstream>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A made-up /sys.
class PciPlaceTest : public ::testing::Test {
 protected:
  PciPlaceTest() : sysfs_(fs::path(::testing::TempDir()) / ("sysfs-" + std::to_string(getpid()))) {}
  ~PciPlaceTest() override { fs::remove_all(sysfs_); }

  // path: below /sys/devices, ending with the bus id.
  void AddDevice(const std::string& path, int numa_node) {
    const fs::path device = sysfs_ / "devices" / path;
    fs::create_directories(device);
    std::ofstream(device / "numa_node") << numa_node << "\n";
    const fs::path link = sysfs_ / "bus/pci/devices" / device.filename();
    fs::create_directories(link.parent_path());
    fs::create_directory_symlink(device, link);
  }
  void AddNic(const std::string& of_class, const std::string& name, const std::string& path,
              int numa_node) {
    AddDevice(path, numa_node);
    const fs::path nic = sysfs_ / "class" / of_class / name;
    fs::create_directories(nic);
    fs::create_directory_symlink(sysfs_ / "devices" / path, nic / "device");
  }
  // file: of a NIC, as "operstate".
  void Write(const std::string& of_class, const std::string& name, const std::string& file,
             const std::string& text) {
    const fs::path path = sysfs_ / "class" / of_class / name / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  void ExpectPlace(const std::string& bus_id, int numa_node, const std::string& nic,
                   const std::string& distance, const std::string& idle = "") {
    const PciPlace place = FindPciPlace(sysfs_, bus_id);
    EXPECT_EQ(place.numa_node, numa_node);
    EXPECT_EQ(place.nearest_nic, nic);
    EXPECT_EQ(place.nic_distance, distance);
    EXPECT_EQ(place.idle_nic, idle);
  }

  const fs::path sysfs_;
};

constexpr char kGpu[] = "0000:1b:00.0";
constexpr char kGpuPath[] = "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:1b:00.0";

TEST_F(PciPlaceTest, TheNicThatSharesTheLongestWayIsNearest) {
  AddDevice(kGpuPath, 0);
  AddNic("infiniband", "mlx5_0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0);
  AddNic("infiniband", "mlx5_1", "pci0000:16/0000:16:03.0/0000:1f:00.0", 0);
  ExpectPlace(kGpu, 0, "mlx5_1", "same PCIe root");
  AddNic("infiniband", "mlx5_2", "pci0000:16/0000:16:01.0/0000:19:00.0", 0);
  ExpectPlace(kGpu, 0, "mlx5_2", "same PCIe switch");
  AddNic("infiniband", "mlx5_3", "pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:01.0/0000:1c:00.0",
         0);
  ExpectPlace(kGpu, 0, "mlx5_3", "same PCIe switch");
}

TEST_F(PciPlaceTest, ThenTheOneOfTheSameNumaNode) {
  AddDevice(kGpuPath, 1);
  AddNic("infiniband", "mlx5_0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0);
  ExpectPlace(kGpu, 1, "mlx5_0", "far");
  AddNic("infiniband", "mlx5_1", "pci0000:80/0000:80:01.0/0000:81:00.0", 1);
  ExpectPlace(kGpu, 1, "mlx5_1", "same NUMA node");
}

TEST_F(PciPlaceTest, EthernetCountsWhereThereIsNoInfiniBand) {
  AddDevice(kGpuPath, -1);
  fs::create_directories(sysfs_ / "class/net/lo");  // no hardware
  ExpectPlace(kGpu, -1, "", "");
  AddNic("net", "eth0", "pci0000:40/0000:40:01.0/0000:41:00.0", -1);
  ExpectPlace(kGpu, -1, "eth0", "far");
  AddNic("infiniband", "mlx5_0", "pci0000:80/0000:80:01.0/0000:81:00.0", -1);
  ExpectPlace(kGpu, -1, "mlx5_0", "far");
}

TEST_F(PciPlaceTest, OneWithoutALinkIsNotTheNearest) {
  const std::string near = "pci0000:16/0000:16:01.0/0000:19:00.0";
  AddDevice(kGpuPath, 0);
  AddNic("infiniband", "mlx5_0", "pci0000:40/0000:40:01.0/0000:41:00.0", 1);
  AddNic("infiniband", "mlx5_1", near, 0);
  Write("infiniband", "mlx5_1", "ports/1/state", "1: DOWN");
  ExpectPlace(kGpu, 0, "mlx5_0", "far", "mlx5_1");
  Write("infiniband", "mlx5_1", "ports/2/state", "4: ACTIVE");
  ExpectPlace(kGpu, 0, "mlx5_1", "same PCIe switch");
  Write("infiniband", "mlx5_1", "ports/2/state", "2: INIT");
  // Another as near has one: the other port of a card.
  AddNic("infiniband", "mlx5_2", "pci0000:16/0000:16:01.0/0000:19:00.1", 0);
  ExpectPlace(kGpu, 0, "mlx5_2", "same PCIe switch");
}

TEST_F(PciPlaceTest, EthernetWithALinkIsBetterThanInfiniBandWithout) {
  AddDevice(kGpuPath, 0);
  AddNic("infiniband", "mlx5_0", "pci0000:40/0000:40:01.0/0000:41:00.0", 1);
  Write("infiniband", "mlx5_0", "ports/1/state", "1: DOWN");
  ExpectPlace(kGpu, 0, "", "", "mlx5_0");
  AddNic("net", "eth0", "pci0000:16/0000:16:03.0/0000:1f:00.0", 0);
  Write("net", "eth0", "operstate", "up");
  ExpectPlace(kGpu, 0, "eth0", "same PCIe root");
  Write("net", "eth0", "operstate", "down");
  ExpectPlace(kGpu, 0, "", "", "mlx5_0");
}

TEST_F(PciPlaceTest, ADeviceThatIsNotThereHasNoPlace) {
  AddNic("net", "eth0", "pci0000:40/0000:40:01.0/0000:41:00.0", 0);
  ExpectPlace(kGpu, -1, "", "");
  ExpectPlace("", -1, "", "");
}

}  // namespace
}  // namespace lockstep
