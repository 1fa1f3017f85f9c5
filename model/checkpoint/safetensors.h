// The safetensors container, checked strictly. Source: the format description in the safetensors
// repository's README.
//
// Layout: u64 little-endian header length, JSON header, tensor bytes. Refused by name and value: a
// header over 100,000,000 bytes or past the file's end, JSON that is not strict (duplicate names or
// fields, too deep), unknown dtypes, negative or fractional shapes, products that overflow, offsets
// that are not sorted and contiguous from 0, size != shape x dtype, a wrong file length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace lockstep {

struct TensorInfo {
  std::string name;
  // Only F32, F16 and BF16 tensors can be loaded; others of the format's dtypes are legal in a file
  // and have no `dtype`.
  std::optional<DType> dtype;
  std::string dtype_name;  // as in the file: "BF16"
  std::vector<int64_t> shape;
  int64_t file_offset = 0;  // absolute, in the file
  int64_t num_bytes = 0;
  int file_index = 0;  // into the checkpoint's files
};

class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  // Exactly [offset, offset + num_bytes) of the file.
  absl::Status ReadAt(int64_t offset, int64_t num_bytes, void* dst) const;

 private:
  SafetensorsFile() = default;
  absl::Status ReadHeader();
  absl::Status ReadFully(int64_t offset, int64_t num_bytes, void* dst) const;

  std::filesystem::path path_;
  int fd_ = -1;
  std::vector<TensorInfo> tensors_;
};

}  // namespace lockstep
