#include "runtime/controller/wire.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/unknown_field_set.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/proto_buffer_writer.h"
#include "grpcpp/support/slice.h"
#include "kernels/base/check.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string flat;
  if (!buffer.Dump(&slices).ok()) return flat;
  flat.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) {
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return flat;
}

// Names the first string field that is not UTF-8, in this message or one inside it; empty when the
// bytes are otherwise broken.
std::string DescribeBadString(const Descriptor& type, const std::string& bytes) {
  UnknownFieldSet fields;
  if (!fields.ParseFromString(bytes)) return "";
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& field = fields.field(i);
    const FieldDescriptor* known = type.FindFieldByNumber(field.number());
    if (known == nullptr || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string& value = field.length_delimited();
    if (known->type() == FieldDescriptor::TYPE_STRING) {
      const size_t offset = FindInvalidUtf8(value);
      if (offset != std::string::npos)
        return absl::StrCat(known->name(), ": invalid UTF-8 at byte ", offset);
    } else if (known->type() == FieldDescriptor::TYPE_MESSAGE) {
      std::string inner = DescribeBadString(*known->message_type(), value);
      if (!inner.empty()) return absl::StrCat(known->name(), ".", inner);
    }
  }
  return "";
}

}  // namespace

grpc::ByteBuffer SerializeMessage(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  grpc::Slice slice(size);
  LS_CHECK(message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin())) ==
           slice.end());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::Message& message) {
  google::protobuf::LogSilencer no_line_per_bad_request;
  grpc::ByteBuffer shared = buffer;  // shares the bytes; the reader needs one it may consume
  grpc::ProtoBufferReader reader(&shared);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return absl::OkStatus();
  const std::string reason = DescribeBadString(*message.GetDescriptor(), Flatten(buffer));
  return absl::InvalidArgumentError(
      reason.empty() ? absl::StrCat("the bytes are not a ", message.GetDescriptor()->name())
                     : reason);
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace lockstep
