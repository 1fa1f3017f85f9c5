// A communicator that somebody else owns.
#pragma once

#include "parallel/communicator.h"

namespace lockstep {

class BorrowedCommunicator final : public Communicator {
 public:
  explicit BorrowedCommunicator(Communicator& body) : body_(body) {}

  int rank() const override { return body_.rank(); }
  int size() const override { return body_.size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return body_.AllReduceSum(data, count);
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    return body_.AllGather(mine, bytes, all);
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    return body_.Send(peer, data, bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    return body_.Recv(peer, data, bytes);
  }
  bool Probe(int peer) override { return body_.Probe(peer); }
  absl::Status Barrier() override { return body_.Barrier(); }
  absl::Status Health() override { return body_.Health(); }
  void Abort() override { body_.Abort(); }

 private:
  Communicator& body_;
};

}  // namespace lockstep
