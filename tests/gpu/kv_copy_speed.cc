#include "tests/gpu/kv_copy_speed.h"

#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "kernels/base/check.h"
#include "tests/gpu/device_event.h"
#include "tests/gpu/measuring.h"

namespace lockstep::bench {
namespace {

// All blocks of a cache, to or from memory where they lie one behind the other.
class AllBlocks {
 public:
  AllBlocks(std::byte* cache, const KvCopySize& size, std::byte* host) {
    for (int64_t block = 0; block < size.num_blocks; ++block) {
      addresses_.push_back(
          {static_cast<int32_t>(block), host + block * size.num_pieces * size.piece_bytes});
    }
    copies_ = {cache, size.num_pieces, size.num_blocks, size.piece_bytes, addresses_};
  }
  AllBlocks(const AllBlocks&) = delete;

  const KvBlockCopies& copies() const { return copies_; }

 private:
  std::vector<KvBlockCopy> addresses_;
  KvBlockCopies copies_;
};

double MedianSeconds(cuda::CudaBackend& backend, int num_calls, const std::function<void()>& call) {
  call();  // warm
  std::vector<DeviceEvent> marks(static_cast<size_t>(num_calls) + 1);
  marks[0].Record(backend.stream());
  for (size_t i = 1; i < marks.size(); ++i) {
    call();
    marks[i].Record(backend.stream());
  }
  backend.Synchronize();
  std::vector<double> seconds;
  for (size_t i = 1; i < marks.size(); ++i) seconds.push_back(marks[i].SecondsSince(marks[i - 1]));
  return Median(seconds);
}

}  // namespace

nlohmann::json MeasureKvCopies(cuda::CudaBackend& backend, const KvCopySize& size,
                               const DeviceLimits& limits) {
  const int64_t bytes = size.num_blocks * size.num_pieces * size.piece_bytes;
  const DeviceBuffer cache = Value(backend.Allocate(bytes));
  const DeviceBuffer sent = Value(backend.AllocateOnHost(bytes));
  const DeviceBuffer returned = Value(backend.AllocateOnHost(bytes));
  std::minstd_rand random(1);
  for (int64_t i = 0; i < bytes; ++i) sent.as<uint8_t>()[i] = static_cast<uint8_t>(random() >> 8);
  const AllBlocks to_device(cache.as<std::byte>(), size, sent.as<std::byte>());
  const AllBlocks to_host(cache.as<std::byte>(), size, returned.as<std::byte>());

  const double restore =
      MedianSeconds(backend, size.num_calls, [&] { backend.RestoreKv(to_device.copies()); });
  const double prefetch = MedianSeconds(backend, size.num_calls, [&] {
    backend.PrefetchKv(to_device.copies());
    backend.AwaitPrefetches();
  });
  const double offload = MedianSeconds(backend, size.num_calls, [&] {
    backend.OffloadKv(to_host.copies());
    backend.AwaitOffloads();
  });
  LS_CHECK(std::memcmp(sent.data(), returned.data(), static_cast<size_t>(bytes)) == 0)
      << "blocks of a KV cache come back from the GPU as others";
  const auto speed = [&](double seconds, double limit) -> nlohmann::json {
    const double bytes_per_s = static_cast<double>(bytes) / seconds;
    return {{"gb_per_s", 1e-9 * bytes_per_s}, {"share_of_copies", bytes_per_s / limit}};
  };
  return {{"blocks", size.num_blocks},
          {"pieces", size.num_pieces},
          {"piece_bytes", size.piece_bytes},
          {"offload", speed(offload, limits.to_host_bytes_per_s)},
          {"restore", speed(restore, limits.to_device_bytes_per_s)},
          {"prefetch", speed(prefetch, limits.to_device_bytes_per_s)}};
}

}  // namespace lockstep::bench
