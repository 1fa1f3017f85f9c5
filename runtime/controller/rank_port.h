// The controller's end of one rank's stream, as the core sees it. Bodies: RankLink (gRPC) and the
// simulation's.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace lockstep {

class RankPort {
 public:
  virtual ~RankPort() = default;
  // A serialised ToRank, in order. The bytes are shared, not copied. Ignored after Close.
  virtual void Send(const grpc::ByteBuffer& message) = 0;
  // Ends the stream after what was sent. The first status counts.
  virtual void Close(grpc::Status status) = 0;
  // Ends the stream now: the peer may not be reading.
  virtual void CloseNow(grpc::Status status) = 0;
};

}  // namespace lockstep
