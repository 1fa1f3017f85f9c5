// Protobuf messages <-> gRPC byte buffers. Services take raw buffers so that what does not parse
// (cut off, or a string field that is not valid UTF-8) gets our own one-line INVALID_ARGUMENT, not
// gRPC's UNIMPLEMENTED.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"

namespace lockstep {

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message);

// INVALID_ARGUMENT naming the message, and the string field that is not UTF-8 when that is why.
absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message& message);

// Codes are the same numbers in both.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace lockstep
