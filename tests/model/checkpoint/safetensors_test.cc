#include "model/checkpoint/safetensors.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/safetensors_header.h"
#include "tests/model/checkpoint/model_directory.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::FloatBytes;
using ::testing::HasSubstr;
using testing::LengthPrefix;
using testing::SafetensorsBytes;
using testing::TempDirectory;

constexpr const char* kTwoVectors = R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},)"
                                    R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";

absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenBytes(const TempDirectory& directory,
                                                           const std::string& bytes) {
  return SafetensorsFile::Open(directory.Write("m.safetensors", bytes));
}

TEST(Safetensors, ListsTensorsInFileOrderWhateverTheJsonOrder) {
  const TempDirectory directory;
  const auto file =
      OpenBytes(directory, SafetensorsBytes(kTwoVectors, FloatBytes({1, 2, 3, 4, 5})));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_THAT(tensors[1].shape, ElementsAre(2));
  EXPECT_EQ(tensors[1].dtype, DType::kF32);
  EXPECT_EQ(tensors[1].num_bytes, 8);
  float values[2] = {};
  ASSERT_TRUE((*file)->ReadAt(tensors[1].file_offset, 8, values).ok());
  EXPECT_THAT(values, ElementsAre(4.0f, 5.0f));
}

TEST(Safetensors, ReadPastTheEndIsUnavailable) {
  const TempDirectory directory;
  const auto file =
      OpenBytes(directory, SafetensorsBytes(kTwoVectors, FloatBytes({1, 2, 3, 4, 5})));
  ASSERT_TRUE(file.ok());
  float values[4];
  const absl::Status status = (*file)->ReadAt((*file)->tensors()[1].file_offset, 16, values);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("m.safetensors"));
}

struct Accepted {
  const char* name;
  std::string header;
  int data_bytes;
};

class SafetensorsAccepts : public ::testing::TestWithParam<Accepted> {};

TEST_P(SafetensorsAccepts, Header) {
  const TempDirectory directory;
  const auto file = OpenBytes(
      directory, SafetensorsBytes(GetParam().header, std::string(GetParam().data_bytes, 'x')));
  EXPECT_TRUE(file.ok()) << file.status();
}

std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
  return absl::StrCat(R"({"t":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

INSTANTIATE_TEST_SUITE_P(
    All, SafetensorsAccepts,
    ::testing::Values(
        Accepted{"LeadingAndTrailingSpaces", "  " + OneTensor("F16", "[2]", "[0,4]") + "   ", 4},
        Accepted{"NoTensors", "{}", 0},
        Accepted{"Metadata", R"({"__metadata__":{"format":"pt","x":""}})", 0},
        Accepted{"EmptyMetadata", R"({"__metadata__":{}})", 0},
        Accepted{"Scalar", OneTensor("BF16", "[]", "[0,2]"), 2},
        Accepted{"ZeroSize", OneTensor("F32", "[0,3]", "[0,0]"), 0},
        Accepted{"ZeroTimesHuge", OneTensor("F32", "[0,4611686018427387904]", "[0,0]"), 0},
        Accepted{"ZeroSizeBetweenOthers",
                 R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                 R"("z":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},)"
                 R"("b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                 2},
        Accepted{"Bool", OneTensor("BOOL", "[3]", "[0,3]"), 3},
        Accepted{"U8", OneTensor("U8", "[3]", "[0,3]"), 3},
        Accepted{"I8", OneTensor("I8", "[3]", "[0,3]"), 3},
        Accepted{"F8E5M2", OneTensor("F8_E5M2", "[3]", "[0,3]"), 3},
        Accepted{"F8E4M3", OneTensor("F8_E4M3", "[3]", "[0,3]"), 3},
        Accepted{"I16", OneTensor("I16", "[3]", "[0,6]"), 6},
        Accepted{"U16", OneTensor("U16", "[3]", "[0,6]"), 6},
        Accepted{"I32", OneTensor("I32", "[3]", "[0,12]"), 12},
        Accepted{"U32", OneTensor("U32", "[3]", "[0,12]"), 12},
        Accepted{"F64", OneTensor("F64", "[3]", "[0,24]"), 24},
        Accepted{"I64", OneTensor("I64", "[3]", "[0,24]"), 24},
        Accepted{"U64", OneTensor("U64", "[3]", "[0,24]"), 24}),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, OnlyFloatsHaveALoadableDType) {
  for (const auto& [name, dtype] :
       {std::pair<std::string, std::optional<DType>>{"F16", DType::kF16},
        {"BF16", DType::kBF16},
        {"I16", std::nullopt}}) {
    const auto tensors = ParseSafetensorsHeader(OneTensor(name, "[1]", "[0,2]"), 8, 2);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ(tensors->front().dtype, dtype) << name;
    EXPECT_EQ(tensors->front().dtype_name, name);
  }
}

struct Refused {
  const char* name;
  std::string bytes;
  const char* message;
};

Refused Header(const char* name, const std::string& header, int data_bytes, const char* message) {
  return {name, SafetensorsBytes(header, std::string(data_bytes, 'x')), message};
}

std::string NestedHeader(int depth) { return R"({"t":{"shape":)" + std::string(depth, '['); }

class SafetensorsRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(SafetensorsRefuses, NamingFileAndReason) {
  const TempDirectory directory;
  const auto file = OpenBytes(directory, GetParam().bytes);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(file.status().message());
  EXPECT_THAT(message, HasSubstr("m.safetensors: "));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 600u);
}

INSTANTIATE_TEST_SUITE_P(
    Container, SafetensorsRefuses,
    ::testing::Values(Refused{"EmptyFile", "", "has 0 bytes"},
                      Refused{"SevenBytes", "1234567", "has 7 bytes"},
                      Refused{"HeaderOverLimit", LengthPrefix(100'000'001) + "{}",
                              "100000001 bytes, the limit is 100000000"},
                      Refused{"HeaderLengthOverflows", LengthPrefix(~uint64_t{0}) + "{}",
                              "18446744073709551615 bytes, the limit is 100000000"},
                      Refused{"HeaderPastEnd", LengthPrefix(3) + "{}",
                              "ends at byte 11 but the file at 10"},
                      Refused{"HeaderEmpty", LengthPrefix(0), "not valid JSON"},
                      Header("BytesAfterTheLastTensor", OneTensor("F32", "[1]", "[0,4]"), 5,
                             "1 bytes after its last tensor"),
                      Header("Truncated", OneTensor("F32", "[1]", "[0,4]"), 3, "truncated"),
                      Header("TruncatedTwice", OneTensor("F32", "[2]", "[0,8]"), 0,
                             "\"t\" ends at data offset 8")),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Json, SafetensorsRefuses,
    ::testing::Values(
        Header("NotJson", "hello", 0, "not valid JSON at byte"),
        Header("TopLevelArray", "[]", 0, "expected an object, found an array"),
        Header("TopLevelNumber", "3", 0, "expected an object, found 3"),
        Header("SecondValue", "{}{}", 0, "not valid JSON at byte"),
        Header("NulPadding", std::string("{}\0\0", 4), 0, "a NUL byte"),
        Header("ByteOrderMark", "\xef\xbb\xbf{}", 0, "byte order mark"),
        Header("InvalidUtf8Name", "{\"\xc0\x80\":{}}", 0, "not valid JSON at byte"),
        Header("DuplicateTensor",
               R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
               R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
               2, "tensor \"t\" occurs twice"),
        Header("DuplicateField",
               R"({"t":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1,
               "has \"dtype\" twice"),
        Header("DuplicateMetadataName", R"({"__metadata__":{"a":"1","a":"1"}})", 0,
               "__metadata__ has \"a\" twice"),
        Header("DuplicateMetadata", R"({"__metadata__":{},"__metadata__":{}})", 0, "occurs twice"),
        Header("MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "strings only, found 1"),
        Header("MetadataObject", R"({"__metadata__":{"a":{}}})", 0,
               "strings only, found an object"),
        Header("MetadataNotAnObject", R"({"__metadata__":"x"})", 0,
               "__metadata__ has the wrong type"),
        Header("UnknownField", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
               "unknown field \"x\""),
        Header("DeepNesting", NestedHeader(1'000'000), 0, "found an array")),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Tensor, SafetensorsRefuses,
    ::testing::Values(
        Header("NotAnObject", R"({"t":[1]})", 0, "tensor \"t\" has the wrong type"),
        Header("NoDType", R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "has no dtype"),
        Header("NoShape", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "has no shape"),
        Header("NoOffsets", R"({"t":{"dtype":"U8","shape":[1]}})", 1, "has no data_offsets"),
        Header("DTypeNumber", R"({"t":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1,
               "dtype has the wrong type, found 8"),
        Header("UnknownDType", OneTensor("Q4", "[1]", "[0,1]"), 1, "dtype \"Q4\" is not supported"),
        Header("LowerCaseDType", OneTensor("f32", "[1]", "[0,4]"), 4, "\"f32\" is not supported"),
        Header("SubByteDType", OneTensor("F4", "[2]", "[0,1]"), 1, "\"F4\" is not supported"),
        Header("ScaleDType", OneTensor("F8_E8M0", "[1]", "[0,1]"), 1,
               "\"F8_E8M0\" is not supported"),
        Header("SixBitDType", OneTensor("F6_E2M3", "[4]", "[0,3]"), 3, "\"F6_E2M3\""),
        Header("NegativeShape", OneTensor("U8", "[-1]", "[0,1]"), 1, "found -1"),
        Header("NegativeZeroShape", OneTensor("U8", "[-0]", "[0,0]"), 0, "shape may hold integers"),
        Header("FractionalShape", OneTensor("U8", "[1.0]", "[0,1]"), 1, "found 1.0"),
        Header("ExponentShape", OneTensor("U8", "[1e0]", "[0,1]"), 1, "found 1e0"),
        Header("StringShape", OneTensor("U8", R"(["1"])", "[0,1]"), 1, "found \"1\""),
        Header("NullShape", OneTensor("U8", "null", "[0,1]"), 1, "found null"),
        Header("HugeShape", OneTensor("U8", "[9223372036854775808]", "[0,1]"), 1,
               "found 9223372036854775808"),
        Header("OverflowingShape", OneTensor("U8", "[4294967296,4294967296]", "[0,1]"), 1,
               "more than 2^63 bytes"),
        Header("OverflowingBytes", OneTensor("F64", "[2305843009213693952]", "[0,1]"), 1,
               "more than 2^63 bytes"),
        Header("NestedShape", OneTensor("U8", "[[1]]", "[0,1]"), 1, "found an array"),
        Header("SizeMismatch", OneTensor("F32", "[2]", "[0,4]"), 4,
               "shape [2] of F32 takes 8 bytes, data_offsets [0,4] hold 4")),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Offsets, SafetensorsRefuses,
    ::testing::Values(
        Header("OneOffset", OneTensor("U8", "[1]", "[0]"), 1, "not [begin, end]"),
        Header("ThreeOffsets", OneTensor("U8", "[1]", "[0,1,2]"), 1, "more than 2 elements"),
        Header("BackwardOffsets", OneTensor("U8", "[1]", "[1,0]"), 1, "not [begin, end]"),
        Header("NegativeOffset", OneTensor("U8", "[1]", "[-1,0]"), 1, "found -1"),
        Header("FirstNotAtZero", OneTensor("U8", "[1]", "[1,2]"), 2,
               "begins at data offset 1 where 0 was expected (a hole)"),
        Header("Hole",
               R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
               R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
               3, "tensor \"b\" begins at data offset 2 where 1 was expected (a hole)"),
        Header("Overlap",
               R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
               3, "tensor \"b\" begins at data offset 1 where 2 was expected (an overlap)"),
        Header("SamePlace",
               R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
               2, "(an overlap)")),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, RankIsLimited) {
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  const auto tensors = ParseSafetensorsHeader(OneTensor("U8", shape + "]", "[0,1]"), 8, 1);
  EXPECT_THAT(std::string(tensors.status().message()), HasSubstr("more than 64 elements"));
}

TEST(Safetensors, MissingFileIsNotFound) {
  const auto file = SafetensorsFile::Open("/nonexistent/m.safetensors");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kNotFound);
}

TEST(Safetensors, OtherThanRegularFilesAreRefusedAtOnce) {
  const TempDirectory directory;
  EXPECT_THAT(std::string(SafetensorsFile::Open(directory.path()).status().message()),
              HasSubstr("not a regular file"));
  const auto fifo = directory.path() / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(std::string(SafetensorsFile::Open(fifo).status().message()),
              HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace lockstep
