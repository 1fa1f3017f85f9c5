// A communicator whose body can be exchanged: those who hold a reference (the linear layers, the
// sampler) stay as they are while the ranks form new groups.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "parallel/communicator.h"

namespace lockstep {

class RenewableCommunicator final : public Communicator {
 public:
  explicit RenewableCommunicator(std::unique_ptr<Communicator> body) : body_(std::move(body)) {}

  // The step loop's thread, while no other thread may call Abort.
  void Renew(std::unique_ptr<Communicator> body) { body_ = std::move(body); }

  int rank() const override { return body_->rank(); }
  int size() const override { return body_->size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return body_->AllReduceSum(data, count);
  }
  absl::Status ReduceScatterSum(float* data, int64_t share) override {
    return body_->ReduceScatterSum(data, share);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    return body_->AllGather(mine, bytes, all);
  }
  absl::Status AllGatherTogether(std::span<const Gathering> gatherings) override {
    return body_->AllGatherTogether(gatherings);
  }
  absl::Status AllToAll(const void* mine, int64_t bytes, int64_t stride, void* all) override {
    return body_->AllToAll(mine, bytes, stride, all);
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    return body_->Send(peer, data, bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    return body_->Recv(peer, data, bytes);
  }
  absl::Status StartRecv(int peer, void* data, int64_t bytes) override {
    return body_->StartRecv(peer, data, bytes);
  }
  absl::Status FinishRecv(int peer) override { return body_->FinishRecv(peer); }
  bool Probe(int peer) override { return body_->Probe(peer); }
  absl::Status Barrier() override { return body_->Barrier(); }
  absl::Status Health() override { return body_->Health(); }
  void Abort() override { body_->Abort(); }
  absl::Status Disconnect(Communicator& host) override { return body_->Disconnect(host); }

 private:
  std::unique_ptr<Communicator> body_;
};

}  // namespace lockstep
