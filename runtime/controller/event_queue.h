// The events of one stream that wait for their client, in little more memory than they take on the
// wire: as protobuf objects, log-probabilities take seven to nine times as much.
//
// Not thread-safe. Token deltas of one output are merged while they wait. A message holds at most
// kMaxMessageBytes, unless one token's log-probabilities alone are larger: clients refuse messages
// above 4 MiB unless told otherwise.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "grpcpp/support/byte_buffer.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

class EventQueue {
 public:
  static constexpr int64_t kMaxMessageBytes = 1 << 20;

  // Deltas of an output come before its finish.
  void Push(v1::GenerateEvent event);
  bool empty() const { return waiting_.empty(); }
  // The next message, a serialised GenerateEvent. Not empty.
  grpc::ByteBuffer Pop();
  void Clear();
  // Memory of what waits, allocations that grew ahead included.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  struct Waiting {
    std::optional<uint32_t> output;  // of a delta
    v1::TokenDelta delta;            // without its log-probabilities
    std::string logprobs;            // those, serialised: the end of the delta's bytes
    grpc::ByteBuffer other;          // an event that is no delta
  };
  static int64_t HeldBytes(const Waiting& waiting);
  static int64_t MaxMessageBytes(const Waiting& waiting);
  void PushDelta(v1::TokenDelta delta);
  void PushPromptLogprobs(v1::PromptLogprobs all);
  void PushOther(const v1::GenerateEvent& event);

  std::deque<Waiting> waiting_;
  int64_t held_bytes_ = 0;
};

}  // namespace lockstep
