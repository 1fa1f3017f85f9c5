// A group of devices made of a group of hosts: what is gathered goes by way of the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "parallel/communicator.h"

namespace lockstep::testing {

class DeviceGroup final : public Communicator {
 public:
  DeviceGroup(Communicator& host, Backend& backend) : host_(host), backend_(backend) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    ++num_gathers_;
    std::vector<std::byte> gathered(static_cast<size_t>(bytes * size()));
    backend_.CopyToHost(gathered.data() + rank() * bytes, mine, bytes);
    RETURN_IF_ERROR(host_.AllGather(gathered.data() + rank() * bytes, bytes, gathered.data()));
    backend_.CopyToDevice(all, gathered.data(), bytes * size());
    return absl::OkStatus();
  }
  absl::Status AllToAll(const void* mine, int64_t bytes, int64_t stride, void* all) override {
    ++num_exchanges_;
    const int64_t whole = stride * (size() - 1) + bytes;
    std::vector<std::byte> parts(static_cast<size_t>(whole));
    std::vector<std::byte> gathered(static_cast<size_t>(whole * size()));
    backend_.CopyToHost(parts.data(), mine, whole);
    RETURN_IF_ERROR(host_.AllGather(parts.data(), whole, gathered.data()));
    for (int from = 0; from < size(); ++from) {
      backend_.CopyToDevice(static_cast<std::byte*>(all) + from * stride,
                            gathered.data() + from * whole + rank() * stride, bytes);
    }
    return absl::OkStatus();
  }
  absl::Status AllReduceSum(float*, int64_t) override { return NotHere(); }
  absl::Status Send(int, const void*, int64_t) override { return NotHere(); }
  absl::Status Recv(int, void*, int64_t) override { return NotHere(); }
  bool Probe(int) override { return false; }
  absl::Status Barrier() override { return host_.Barrier(); }
  absl::Status Health() override { return host_.Health(); }
  void Abort() override { host_.Abort(); }

  int64_t num_gathers() const { return num_gathers_; }
  int64_t num_exchanges() const { return num_exchanges_; }

 private:
  static absl::Status NotHere() { return absl::UnimplementedError("only gathers and exchanges"); }

  Communicator& host_;
  Backend& backend_;
  int64_t num_gathers_ = 0;
  int64_t num_exchanges_ = 0;
};

}  // namespace lockstep::testing
