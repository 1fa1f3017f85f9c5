// Memory of the host for copies of a stage's KV blocks, in pieces of about 1 GiB: taking it takes
// the time that pinning takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/device_buffer.h"

namespace lockstep {

class HostKvBlocks {
 public:
  HostKvBlocks() = default;
  HostKvBlocks(HostKvBlocks&&) = default;
  HostKvBlocks& operator=(HostKvBlocks&&) = default;
  ~HostKvBlocks() { Release(); }

  // Anew; what was there is gone. backend must outlive this object. num_blocks >= 0, block_bytes
  // >= 1. on_progress is called now and then, and may be null. INVALID_ARGUMENT (more bytes than
  // can be counted), RESOURCE_EXHAUSTED: then there are none.
  absl::Status Allocate(Backend& backend, int64_t num_blocks, int64_t block_bytes,
                        const std::function<void()>& on_progress);
  int64_t num_blocks() const { return num_blocks_; }
  std::byte* at(int32_t block) const {  // [block_bytes]
    return parts_[static_cast<size_t>(block / blocks_per_part_)].as<std::byte>() +
           block % blocks_per_part_ * block_bytes_;
  }

 private:
  void Release();  // once no copy is under way

  Backend* backend_ = nullptr;
  std::vector<DeviceBuffer> parts_;
  int64_t num_blocks_ = 0;
  int64_t block_bytes_ = 0;
  int64_t blocks_per_part_ = 1;
};

}  // namespace lockstep
