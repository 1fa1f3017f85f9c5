// Rows of a checkpoint on their way to the device. Those in pinned memory are copied from where
// they lie; others pass through the staging memory. Numbers of another dtype than the device keeps
// are converted there: f32 on its way to bf16 thus takes twice the bytes of the bus, while rounded
// by the host all of it would pass through the host's caches and memory once more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "kernels/cuda/host_staging.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/linear_weight.h"

namespace lockstep::cuda {

// Any thread may use it, over disjoint destinations. Everything is issued to the stream; what is
// pinned may be read until a mark that is set later.
class RowLoader {
 public:
  // Device memory that conversions take.
  static int64_t DeviceBytes(const HostStaging& staging) { return 2 * staging.slot_bytes(); }
  RowLoader(HostStaging& staging, const KernelStream& stream, DeviceBuffer memory)
      : staging_(staging), stream_(stream), memory_(std::move(memory)) {}

  // Of a row, so that it fits a slot in any dtype.
  int64_t most_columns() const { return staging_.slot_bytes() / int64_t{sizeof(float)}; }
  // The bytes as they are, densely.
  void Copy(const HostRows& rows, int64_t row_bytes, void* to);
  // Numbers, to [num_rows, width] of dtype.
  void Convert(const HostRows& rows, int64_t width, DType dtype, void* to);
  // Numbers, rounded to compute, as LaunchQuantizeFp8 makes rows of them.
  void Quantize(const HostRows& rows, int64_t width, DType compute, const E4m3Rows& to);

 private:
  // issue(rows in pinned memory, one behind the other, the first, how many) for a few at a time:
  // row_bytes of each, most_row_bytes in the largest form that they take.
  template <typename Issue>
  void Stage(const HostRows& rows, int64_t row_bytes, int64_t most_row_bytes, const Issue& issue);
  std::byte* stored() const { return memory_.as<std::byte>(); }
  std::byte* rounded() const { return stored() + staging_.slot_bytes(); }

  HostStaging& staging_;
  const KernelStream stream_;
  // Rows as they are stored, and numbers to be quantized. Their copy and what reads it are issued
  // together, so that the next copy comes behind both.
  const DeviceBuffer memory_;
  std::mutex conversion_;
};

}  // namespace lockstep::cuda
