#include "launcher/serving/gpu_summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string BusId(int gpu) { return "0000:0" + std::to_string(gpu) + ":00.0"; }

// A rank on GPU `gpu` of a host that has four, each linked to the others by `link`.
ControllerEvent Checked(const char* host, int node, int gpu, DeviceLink link) {
  ControllerEvent event;
  event.host = host;
  event.check.node = node;
  event.check.gpu = RankCheck::Gpu{.index = gpu,
                                   .name = "NVIDIA H100 80GB HBM3",
                                   .memory_bytes = int64_t{80} << 30,
                                   .pci_bus_id = BusId(gpu),
                                   .numa_node = 0,
                                   .nearest_nic = "mlx5_0",
                                   .nic_distance = "same PCIe switch",
                                   .idle_nic = "",
                                   .links = {}};
  for (int peer = 0; peer < 4; ++peer) {
    if (peer != gpu) event.check.gpu->links[BusId(peer)] = link;
  }
  return event;
}

TEST(GpuSummaryTest, EachRanksGpuAndTheLinks) {
  std::map<int, ControllerEvent> checks = {{0, Checked("a", 0, 0, DeviceLink::kNvLink)},
                                           {1, Checked("a", 0, 1, DeviceLink::kNvLink)},
                                           {2, Checked("b", 2, 0, DeviceLink::kNvLink)},
                                           {3, Checked("b", 2, 1, DeviceLink::kNvLink)}};
  checks[3].check.gpu->numa_node = -1;
  checks[3].check.gpu->nearest_nic = "";
  checks[2].check.gpu->idle_nic = checks[3].check.gpu->idle_nic = "mlx5_1";
  EXPECT_THAT(GpuLines(checks),
              ElementsAre("GPUs     rank 0 on a: GPU 0, NVIDIA H100 80GB HBM3, 80.0 GiB, "
                          "0000:00:00.0, NUMA node 0, NIC mlx5_0 (same PCIe switch)",
                          HasSubstr("rank 1 on a: GPU 1"),
                          AllOf(HasSubstr("rank 2 on b: GPU 0"),
                                EndsWith("NIC mlx5_0 (same PCIe switch), no link on mlx5_1, which "
                                         "is nearer")),
                          "         rank 3 on b: GPU 1, NVIDIA H100 80GB HBM3, 80.0 GiB, "
                          "0000:01:00.0, no link on mlx5_1",
                          "         between all of a host: NVLink"));
  EXPECT_THAT(GpuWarnings(2, checks), IsEmpty());
  const auto json = GpusJson(checks);
  EXPECT_EQ(json[1]["rank"], 1);
  EXPECT_EQ(json[1]["links"]["0000:00:00.0"], "NVLink");
  EXPECT_EQ(json[2]["idle_nic"], "mlx5_1");
  EXPECT_EQ(json[3]["numa_node"], -1);
}

TEST(GpuSummaryTest, TheFullestGpusMemoryIsTold) {
  const auto rehearsed = [](int64_t left_gib) {
    ControllerEvent event;
    event.memory = RankMemory{.device = {.total_bytes = int64_t{80} << 30,
                                         .budget_bytes = int64_t{72} << 30,
                                         .held_bytes = int64_t{17} << 30,
                                         .other_bytes = int64_t{1} << 30,
                                         .left_bytes = left_gib << 30},
                              .weight_bytes = int64_t{15} << 30};
    return event;
  };
  std::map<int, ControllerEvent> rehearsals = {{0, rehearsed(54)}, {1, rehearsed(53)}};
  EXPECT_EQ(MemoryLine(rehearsals),
            "Memory   rank 1 may fill 72.0 GiB of its GPU: 15.0 GiB of weights, 2.0 GiB for "
            "steps, 1.0 GiB for libraries and recorded steps, 53.0 GiB left for the KV cache");
  EXPECT_EQ(RehearsalJson(rehearsals[0])["gpu_memory"]["left_bytes"], int64_t{54} << 30);
  rehearsals[1].memory->device.left_bytes = int64_t{33} << 30;
  rehearsals[1].memory->device.foreign_bytes = int64_t{26} << 30;
  EXPECT_THAT(MemoryLine(rehearsals), HasSubstr("33.0 GiB left for the KV cache; other programs "
                                                "and the driver hold 26.0 GiB: see nvidia-smi"));
  EXPECT_EQ(RehearsalJson(rehearsals[1])["gpu_memory"]["foreign_bytes"], int64_t{26} << 30);
  rehearsals[0].memory->device.other_bytes = 0;
  rehearsals[0].memory->device.left_bytes = -5;
  EXPECT_THAT(MemoryLine(rehearsals), HasSubstr("2.0 GiB for steps, 0 B left"));
  rehearsals = {{0, ControllerEvent()}};
  EXPECT_EQ(MemoryLine(rehearsals), "");
  EXPECT_FALSE(RehearsalJson(rehearsals[0]).contains("gpu_memory"));
}

TEST(GpuSummaryTest, AGroupWithoutPeerAccessIsWarnedOfOnce) {
  std::map<int, ControllerEvent> checks;
  for (int rank = 0; rank < 4; ++rank) {
    checks[rank] = Checked("a", 0, rank, DeviceLink::kPeerAccess);
  }
  for (const auto& [from, to] : {std::pair(0, 2), std::pair(2, 3), std::pair(1, 2)}) {
    checks[from].check.gpu->links[BusId(to)] = DeviceLink::kNone;
  }
  EXPECT_THAT(GpuLines(checks),
              ::testing::Contains("         between ranks 0-2, 1-2, 2-3: no peer access"));
  EXPECT_THAT(GpuLines(checks),
              ::testing::Contains("         between ranks 0-1, 0-3, 1-3: peer access"));
  EXPECT_THAT(GpuWarnings(2, checks),
              ElementsAre(HasSubstr("ranks 2 and 3 on a (0000:02:00.0, 0000:03:00.0)")));
  EXPECT_THAT(GpuWarnings(4, checks), ElementsAre(HasSubstr("ranks 0 and 2 on a")));
  EXPECT_THAT(GpuWarnings(1, checks), IsEmpty()) << "stages send to each other, but do not add up";
}

TEST(GpuSummaryTest, OneGpuForAllNeedsNoLink) {
  const std::map<int, ControllerEvent> checks = {{0, Checked("a", 0, 0, DeviceLink::kNone)},
                                                 {1, Checked("a", 0, 0, DeviceLink::kNone)}};
  EXPECT_EQ(GpuLines(checks).size(), 2u);
  EXPECT_THAT(GpuWarnings(2, checks), IsEmpty());
}

TEST(GpuSummaryTest, CpusHaveNone) {
  const std::map<int, ControllerEvent> checks = {{0, ControllerEvent()}, {1, ControllerEvent()}};
  EXPECT_THAT(GpuLines(checks), IsEmpty());
  EXPECT_THAT(GpusJson(checks), IsEmpty());
  EXPECT_THAT(GpuWarnings(2, checks), IsEmpty());
}

}  // namespace
}  // namespace lockstep
