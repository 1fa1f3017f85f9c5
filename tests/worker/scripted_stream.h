// A rank's stream as the test's controller plays it.
#pragma once

#include <cstdint>

#include "grpcpp/grpcpp.h"
#include "lockstep/v1/worker.grpc.pb.h"
#include "runtime/worker/plan_codec.h"

namespace lockstep::testing {

using Stream = grpc::ServerReaderWriter<v1::ToRank, v1::FromRank>;

// The next message that is no heartbeat; empty at the stream's end.
inline v1::FromRank NextOrProgress(Stream& stream) {
  v1::FromRank message;
  while (stream.Read(&message)) {
    if (!message.has_heartbeat()) return message;
  }
  return {};
}

// Nor progress of loading.
inline v1::FromRank Next(Stream& stream) {
  v1::FromRank message = NextOrProgress(stream);
  while (message.has_loading()) message = NextOrProgress(stream);
  return message;
}

inline void Welcome(Stream& stream, int64_t heartbeat_interval_ms = 50) {
  v1::ToRank message;
  message.mutable_welcome()->set_heartbeat_interval_ms(heartbeat_interval_ms);
  stream.Write(message);
}

// From Welcome to Ready; false when the rank does not come that far.
inline bool Prepare(Stream& stream, int64_t num_kv_blocks = 16) {
  Welcome(stream);
  if (!Next(stream).has_loaded()) return false;
  v1::ToRank start;
  start.mutable_start()->set_num_kv_blocks(num_kv_blocks);
  stream.Write(start);
  return Next(stream).has_ready();
}

inline void Send(Stream& stream, const engine::StepPlan& plan) {
  v1::ToRank message;
  EncodePlan(plan, message.mutable_plan());
  stream.Write(message);
}

inline void ShutDown(Stream& stream) {
  v1::ToRank message;
  message.mutable_shutdown()->set_reason("done");
  stream.Write(message);
}

inline void WaitForEnd(Stream& stream) {
  while (Next(stream).message_case() != v1::FromRank::MESSAGE_NOT_SET) {
  }
}

}  // namespace lockstep::testing
