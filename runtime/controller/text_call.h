// A unary call whose answer may have to wait for its turn.
#pragma once

#include <atomic>

#include "grpcpp/support/server_callback.h"

namespace lockstep {

// gRPC's once it has been returned to it; until Finish others may use it, too.
class TextCall final : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() override { is_cancelled_ = true; }
  void OnDone() override { delete this; }
  bool is_cancelled() const { return is_cancelled_; }

 private:
  std::atomic<bool> is_cancelled_ = false;
};

}  // namespace lockstep
