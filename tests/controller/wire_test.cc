#include "runtime/controller/wire.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

grpc::ByteBuffer Bytes(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

TEST(WireTest, MessagesSurviveTheRoundTrip) {
  v1::GenerateRequest request;
  request.set_text("h\xc3\xa9llo");
  v1::GenerateRequest parsed;
  ASSERT_TRUE(ParseMessage(SerializeMessage(request), parsed).ok());
  EXPECT_EQ(parsed.text(), request.text());
}

TEST(WireTest, AnEmptyBufferIsAnEmptyMessage) {
  v1::GenerateRequest parsed;
  EXPECT_TRUE(ParseMessage(Bytes(""), parsed).ok());
}

TEST(WireTest, InvalidUtf8NamesFieldAndByte) {
  v1::GenerateRequest parsed;
  const absl::Status status = ParseMessage(Bytes(std::string("\x12\x03", 2) + "ab\xff"), parsed);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "text: invalid UTF-8 at byte 2");
}

TEST(WireTest, InvalidUtf8InsideAFieldIsNamedToo) {
  v1::GenerateRequest parsed;  // stop { stop_strings: "\xff" }
  const absl::Status status = ParseMessage(Bytes("\x2a\x03\x22\x01\xff"), parsed);
  EXPECT_EQ(status.message(), "stop.stop_strings: invalid UTF-8 at byte 0");
}

TEST(WireTest, GarbageNamesTheMessage) {
  v1::GenerateRequest parsed;
  const absl::Status status = ParseMessage(Bytes("\x12\x7f-"), parsed);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("GenerateRequest"));
}

}  // namespace
}  // namespace lockstep
