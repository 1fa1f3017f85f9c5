#include "model/llama/host_kv_blocks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace lockstep {
namespace {

constexpr int64_t kPartBytes = int64_t{1} << 30;

}  // namespace

void HostKvBlocks::Release() {
  if (!parts_.empty()) backend_->Synchronize();
  num_blocks_ = 0;
  parts_.clear();
}

absl::Status HostKvBlocks::Allocate(Backend& backend, int64_t num_blocks, int64_t block_bytes,
                                    const std::function<void()>& on_progress) {
  Release();
  backend_ = &backend;
  int64_t bytes = 0;
  if (num_blocks > INT32_MAX || __builtin_mul_overflow(num_blocks, block_bytes, &bytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d blocks of %d bytes of the host's memory", num_blocks, block_bytes));
  }
  block_bytes_ = block_bytes;
  blocks_per_part_ = std::max<int64_t>(1, kPartBytes / block_bytes);
  for (int64_t begin = 0; begin < num_blocks; begin += blocks_per_part_) {
    const int64_t count = std::min(blocks_per_part_, num_blocks - begin);
    absl::StatusOr<DeviceBuffer> part = backend.AllocateOnHost(count * block_bytes);
    if (!part.ok()) {
      parts_.clear();
      return absl::Status(part.status().code(),
                          absl::StrFormat("for copies of KV blocks (--kv-offload-gib), after %d of "
                                          "%d bytes: %s",
                                          begin * block_bytes, bytes, part.status().message()));
    }
    parts_.push_back(*std::move(part));
    if (on_progress) on_progress();
  }
  num_blocks_ = num_blocks;
  return absl::OkStatus();
}

}  // namespace lockstep
