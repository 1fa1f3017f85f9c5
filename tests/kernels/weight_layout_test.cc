// Packed weights are kept in files over versions of this program: their bytes must not change under
// the same name.
#include <map>
#include <ostream>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu_backend_options.h"

namespace lockstep {
namespace {

struct Hex {
  uint64_t value;
  bool operator==(const Hex&) const = default;
  friend std::ostream& operator<<(std::ostream& out, Hex hex) {
    return out << std::hex << "0x" << hex.value;
  }
};

uint64_t Hash(const DeviceBuffer& memory) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (int64_t i = 0; i < memory.bytes(); ++i) {
    hash = (hash ^ memory.as<uint8_t>()[i]) * 0x100000001b3u;
  }
  return hash;
}

// Of a matrix of 45 x 608 in 4 K-slices, packed by this instruction set.
Hex PackedHash(Backend& backend, DType dtype, Quantization quantize) {
  constexpr int64_t kRows = 45, kColumns = 608;
  std::vector<float> rows(kRows * kColumns);
  uint32_t state = 1;
  for (float& value : rows) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) * 0x1p-22f;
  }
  const DeviceBuffer* placed = nullptr;
  std::vector<std::unique_ptr<DeviceBuffer>> memory;
  backend.PlaceWeights([&](int64_t bytes) -> absl::StatusOr<DeviceBuffer> {
    memory.push_back(std::make_unique<DeviceBuffer>(*cpu::AllocateHost(bytes)));
    placed = memory.back().get();
    return DeviceBuffer(std::shared_ptr<void>(placed->data(), [](void*) {}), bytes);
  });
  const auto weight = *backend.AllocateLinear({kRows, kColumns, dtype, 4, quantize});
  backend.PlaceWeights(nullptr);
  backend.FillLinear(*weight, 0, {rows.data(), DType::kF32, kRows, kColumns * 4});
  LS_CHECK(placed != nullptr);
  return {Hash(*placed)};
}

// After a change that is meant: raise kPackedLayoutVersion and write the new hashes here.
TEST(WeightLayout, EqualNamesMeanEqualBytes) {
  struct Hashes {
    Hex f32, bf16, int8, int4;
  };
  const std::map<std::string, Hashes> known = {
      {"cpu 1, panels of 16, quantized panels of 32",
       {{0x1eaf429b20b2a9a3}, {0x7fcb026de6833b83}, {0xfaf151df9c90acb2}, {0xd78ef304903335de}}},
      {"cpu 1, panels of 32, quantized panels of 32",
       {{0xecee12ba59850a4f}, {0xa5c2f26cc660b533}, {0xfaf151df9c90acb2}, {0xd78ef304903335de}}},
  };
  for (const char* isa :
       {"scalar", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"}) {
    const auto backend = MakeCpuBackend({1, isa});
    if (!backend.ok()) continue;
    const std::string name = (*backend)->WeightLayout();
    SCOPED_TRACE(isa);
    ASSERT_TRUE(known.contains(name)) << name;
    const Hashes& want = known.at(name);
    EXPECT_EQ(PackedHash(**backend, DType::kF32, Quantization::kNone), want.f32);
    EXPECT_EQ(PackedHash(**backend, DType::kBF16, Quantization::kNone), want.bf16);
    EXPECT_EQ(PackedHash(**backend, DType::kBF16, Quantization::kInt8), want.int8);
    EXPECT_EQ(PackedHash(**backend, DType::kBF16, Quantization::kInt4), want.int4);
  }
  EXPECT_EQ(MakeReferenceBackend()->WeightLayout(), "");
}

}  // namespace
}  // namespace lockstep
