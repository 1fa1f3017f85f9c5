#include "model/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "model/json/strict_json.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr size_t kMaxRank = 64;

struct FileDType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;  // where we can load it
};
// Source: `Dtype` in the safetensors repository (safetensors/src/tensor.rs). Its sub-byte and
// 8-bit-exponent kinds (F4, F6_*, F8_E8M0) have no whole number of bytes or no meaning without
// scales, and are refused by name.
constexpr std::array<FileDType, 15> kFileDTypes = {{{"BOOL", 1, std::nullopt},
                                                    {"U8", 1, std::nullopt},
                                                    {"I8", 1, std::nullopt},
                                                    {"F8_E5M2", 1, std::nullopt},
                                                    {"F8_E4M3", 1, std::nullopt},
                                                    {"I16", 2, std::nullopt},
                                                    {"U16", 2, std::nullopt},
                                                    {"F16", 2, DType::kF16},
                                                    {"BF16", 2, DType::kBF16},
                                                    {"I32", 4, std::nullopt},
                                                    {"U32", 4, std::nullopt},
                                                    {"F32", 4, DType::kF32},
                                                    {"F64", 8, std::nullopt},
                                                    {"I64", 8, std::nullopt},
                                                    {"U64", 8, std::nullopt}}};

const FileDType* FindFileDType(std::string_view name) {
  const auto found = std::find_if(kFileDTypes.begin(), kFileDTypes.end(),
                                  [&](const FileDType& known) { return known.name == name; });
  return found == kFileDTypes.end() ? nullptr : &*found;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

// The state machine of the header's grammar: { name: {"dtype", "shape", "data_offsets"},
// "__metadata__": {string: string} }. Nothing deeper is ever accepted, so hostile nesting stops at
// its first bracket.
class HeaderHandler : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Unexpected(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override { return Unexpected(text); }
  bool binary(binary_t&) override { return Unexpected("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets)
      return Unexpected(absl::StrCat(value));
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Unexpected(absl::StrCat(value));
    }
    std::vector<int64_t>& list = place_ == Place::kShape ? tensor_.shape : offsets_;
    if (list.size() >= (place_ == Place::kShape ? kMaxRank : 2)) {
      return Fail(absl::StrCat(Where(), " has more than ", list.size(), " elements"));
    }
    list.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected(Quoted(value));
    tensor_.dtype_name = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return Unexpected("an object");
    seen_.clear();
    place_ = is_metadata_ ? Place::kMetadata : Place::kTensor;
    return true;
  }

  bool key(string_t& name) override {
    absl::flat_hash_set<std::string>& names = place_ == Place::kTop ? tensor_names_ : seen_;
    if (!names.insert(name).second) {
      return Fail(place_ == Place::kTop ? absl::StrCat("tensor ", Quoted(name), " occurs twice")
                                        : absl::StrCat(Where(), " has ", Quoted(name), " twice"));
    }
    if (place_ == Place::kTop) {
      is_metadata_ = name == "__metadata__";
      tensor_ = TensorInfo();
      tensor_.name = std::move(name);
      offsets_.clear();
      field_.clear();
    } else if (place_ == Place::kTensor) {
      field_ = name;
      if (name != "dtype" && name != "shape" && name != "data_offsets") {
        return Fail(absl::StrCat(TensorText(), " has the unknown field ", Quoted(name)));
      }
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kTensor || (field_ != "shape" && field_ != "data_offsets")) {
      return Unexpected("an array");
    }
    place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kDone;
      return true;
    }
    const bool is_tensor = place_ == Place::kTensor;
    place_ = Place::kTop;
    if (!is_tensor) return true;
    status_ = FinishTensor();
    return status_.ok();
  }

  bool parse_error(std::size_t position, const std::string&,
                   const json::exception& error) override {
    status_ = JsonSyntaxError(position, error.what());
    return false;
  }

  const absl::Status& status() const { return status_; }
  std::vector<TensorInfo> TakeTensors() { return std::move(tensors_); }

 private:
  enum class Place { kStart, kTop, kTensor, kShape, kOffsets, kMetadata, kDone };

  bool Fail(std::string message) {
    status_ = absl::InvalidArgumentError(std::move(message));
    return false;
  }

  std::string TensorText() const {
    return is_metadata_ ? "__metadata__" : absl::StrCat("tensor ", Quoted(tensor_.name));
  }
  std::string Where() const {
    return field_.empty() ? TensorText() : absl::StrCat(TensorText(), ": ", field_);
  }

  bool Unexpected(const std::string& value) {
    const std::string found = value.substr(0, 140);
    switch (place_) {
      case Place::kStart:
        return Fail(absl::StrCat("expected an object, found ", found));
      case Place::kMetadata:
        return Fail(absl::StrCat("__metadata__ may hold strings only, found ", found));
      case Place::kShape:
      case Place::kOffsets:
        return Fail(absl::StrCat(Where(), " may hold integers in [0, 2^63) only, found ", found));
      default:
        return Fail(absl::StrCat(Where(), " has the wrong type, found ", found));
    }
  }

  // size = shape x dtype; the place in the file is checked later, over all tensors.
  absl::Status FinishTensor() {
    for (const char* field : {"dtype", "shape", "data_offsets"}) {
      if (!seen_.contains(field)) {
        return absl::InvalidArgumentError(absl::StrCat(TensorText(), " has no ", field));
      }
    }
    const FileDType* dtype = FindFileDType(tensor_.dtype_name);
    if (dtype == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(TensorText(), ": dtype ",
                                                     Quoted(tensor_.dtype_name),
                                                     " is not supported; use F32, F16 or BF16"));
    }
    tensor_.dtype = dtype->dtype;
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return absl::InvalidArgumentError(absl::StrCat(TensorText(), ": data_offsets ",
                                                     ShapeText(offsets_),
                                                     " are not [begin, end] with begin <= end"));
    }
    int64_t num_bytes = dtype->bytes;
    for (const int64_t extent : tensor_.shape) {
      if (__builtin_mul_overflow(num_bytes, extent, &num_bytes)) {
        return absl::InvalidArgumentError(absl::StrCat(
            TensorText(), ": shape ", ShapeText(tensor_.shape), " has more than 2^63 bytes"));
      }
    }
    if (num_bytes != offsets_[1] - offsets_[0]) {
      return absl::InvalidArgumentError(
          absl::StrCat(TensorText(), ": shape ", ShapeText(tensor_.shape), " of ",
                       tensor_.dtype_name, " takes ", num_bytes, " bytes, data_offsets ",
                       ShapeText(offsets_), " hold ", offsets_[1] - offsets_[0]));
    }
    tensor_.file_offset = offsets_[0];  // from the data's start, until PlaceTensors
    tensor_.num_bytes = num_bytes;
    tensors_.push_back(std::move(tensor_));
    return absl::OkStatus();
  }

  Place place_ = Place::kStart;
  bool is_metadata_ = false;
  std::string field_;
  TensorInfo tensor_;
  std::vector<int64_t> offsets_;
  absl::flat_hash_set<std::string> tensor_names_;
  absl::flat_hash_set<std::string> seen_;  // names of the object that is open inside the top one
  std::vector<TensorInfo> tensors_;
  absl::Status status_;
};

// Sorts by offset and checks that the tensors cover [0, data_bytes) with no hole and no overlap.
// JSON order is free.
absl::Status PlaceTensors(int64_t data_begin, int64_t data_bytes,
                          std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.file_offset, a.num_bytes, a.name) <
           std::tie(b.file_offset, b.num_bytes, b.name);
  });
  int64_t expected = 0;
  for (TensorInfo& tensor : tensors) {
    if (tensor.file_offset != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name), " begins at data offset ",
                       tensor.file_offset, " where ", expected, " was expected (",
                       tensor.file_offset > expected ? "a hole" : "an overlap", ")"));
    }
    if (tensor.num_bytes > data_bytes - expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quoted(tensor.name), " ends at data offset ", expected + tensor.num_bytes,
          " but the file ends at ", data_bytes, "; the file is truncated: download it again"));
    }
    expected += tensor.num_bytes;
    tensor.file_offset += data_begin;
  }
  if (expected != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file has ", data_bytes - expected,
                     " bytes after its last tensor's end at data offset ", expected));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorInfo>> ParseSafetensorsHeader(std::string_view header,
                                                               int64_t data_begin,
                                                               int64_t data_bytes) {
  HeaderHandler handler;
  RETURN_IF_ERROR(SaxParseStrictJson(header, handler));
  RETURN_IF_ERROR(handler.status());
  std::vector<TensorInfo> tensors = handler.TakeTensors();
  RETURN_IF_ERROR(PlaceTensors(data_begin, data_bytes, tensors));
  return tensors;
}

}  // namespace lockstep
