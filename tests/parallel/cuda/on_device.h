// What tests of groups of devices are written in: streams, copies on the device, and a communicator
// that takes host memory, so that what every body must do can be asked of those that take none.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "parallel/communicator.h"

namespace lockstep::testing {

class Stream {
 public:
  Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
  ~Stream() { EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A copy on the device of what the host gives to a communicator's call.
class OnDevice {
 public:
  OnDevice(const void* host, int64_t bytes, cudaStream_t stream) : bytes_(bytes), stream_(stream) {
    if (bytes == 0) return;
    EXPECT_EQ(cudaMalloc(&memory_, static_cast<size_t>(bytes)), cudaSuccess);
    if (host != nullptr) Copy(memory_, host, cudaMemcpyHostToDevice);
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }
  void ReadTo(void* host) const {
    if (bytes_ > 0) Copy(host, memory_, cudaMemcpyDeviceToHost);
  }

 private:
  void Copy(void* to, const void* from, cudaMemcpyKind kind) const {
    EXPECT_EQ(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes_), kind, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  void* memory_ = nullptr;
  int64_t bytes_;
  cudaStream_t stream_;
};

class FromHost final : public Communicator {
 public:
  FromHost(Communicator& device, cudaStream_t stream) : device_(device), stream_(stream) {}
  int rank() const override { return device_.rank(); }
  int size() const override { return device_.size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    const OnDevice copy(data, count * 4, stream_);
    RETURN_IF_ERROR(device_.AllReduceSum(copy.as<float>(), count));
    copy.ReadTo(data);
    return absl::OkStatus();
  }
  absl::Status ReduceScatterSum(float* data, int64_t share) override {
    const OnDevice copy(data, share * size() * 4, stream_);
    RETURN_IF_ERROR(device_.ReduceScatterSum(copy.as<float>(), share));
    copy.ReadTo(data);
    return absl::OkStatus();
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    const OnDevice given(mine, bytes, stream_);
    const OnDevice gathered(all, bytes * size(), stream_);
    auto* slot = static_cast<std::byte*>(all) + rank() * bytes;
    const void* from =
        mine == slot ? gathered.as<std::byte>() + rank() * bytes : given.as<std::byte>();
    RETURN_IF_ERROR(device_.AllGather(from, bytes, gathered.as<void>()));
    gathered.ReadTo(all);
    return absl::OkStatus();
  }
  // All of them in place, as a copy of `all` has it.
  absl::Status AllGatherTogether(std::span<const Gathering> gatherings) override {
    std::vector<std::unique_ptr<OnDevice>> copies;
    std::vector<Gathering> on_device;
    for (const auto& [mine, bytes, all] : gatherings) {
      auto* const memory =
          copies.emplace_back(std::make_unique<OnDevice>(all, bytes * size(), stream_))
              ->as<std::byte>();
      on_device.push_back({memory + rank() * bytes, bytes, memory});
    }
    RETURN_IF_ERROR(device_.AllGatherTogether(on_device));
    for (size_t i = 0; i < copies.size(); ++i) copies[i]->ReadTo(gatherings[i].all);
    return absl::OkStatus();
  }
  absl::Status AllToAll(const void* mine, int64_t bytes, int64_t stride, void* all) override {
    const int64_t whole = stride * (size() - 1) + bytes;
    const OnDevice given(mine, whole, stream_);
    const OnDevice received(all, whole, stream_);
    RETURN_IF_ERROR(device_.AllToAll(given.as<void>(), bytes, stride, received.as<void>()));
    received.ReadTo(all);
    return absl::OkStatus();
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    const OnDevice copy(data, bytes, stream_);
    return device_.Send(peer, copy.as<void>(), bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    const OnDevice copy(nullptr, bytes, stream_);
    RETURN_IF_ERROR(device_.Recv(peer, copy.as<void>(), bytes));
    copy.ReadTo(data);
    return absl::OkStatus();
  }
  bool Probe(int peer) override { return device_.Probe(peer); }
  absl::Status Barrier() override { return device_.Barrier(); }
  absl::Status Health() override { return device_.Health(); }
  void Abort() override { device_.Abort(); }

 private:
  Communicator& device_;
  cudaStream_t stream_;
};

}  // namespace lockstep::testing
