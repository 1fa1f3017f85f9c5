// A Hugging Face model directory, opened and checked but not read: config, tensor directory,
// byte-counted reads.
//
// Thread-safe after Open: loader threads read disjoint parts concurrently.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/checkpoint/safetensors.h"
#include "model/model_config.h"

namespace lockstep {

class Checkpoint {
 public:
  // Reads config.json (as ReadConfigText), generation_config.json (optional), the tokenizer's end
  // token (FindEndToken) and the header of every *.safetensors file that model.safetensors or
  // model.safetensors.index.json names.
  // NOT_FOUND, INVALID_ARGUMENT (what is wrong, where); PERMISSION_DENIED or UNAVAILABLE where it
  // cannot be told what is there.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  // Of a quantized one, with the matrices that its files spare.
  const ModelConfig& config() const { return config_; }
  const GenerationDefaults& generation_defaults() const { return generation_defaults_; }
  // INVALID_ARGUMENT naming the tensor when the checkpoint has none of that name.
  absl::StatusOr<const TensorInfo*> Find(std::string_view name) const;
  // config().Fingerprint and a hash of what tensors there are and of some numbers of each, as they
  // lie in the files, however these divide them: a fine-tune and its base differ in it. Reads 64
  // bytes a tensor, which are not counted. UNAVAILABLE as Read.
  absl::StatusOr<std::string> Fingerprint(Quantization quantize = Quantization::kNone) const;
  std::vector<std::string> tensor_names() const;  // sorted
  int64_t total_bytes() const;                    // of all tensors
  // Whether the matrix of that name (without ".weight") lies quantized: all do in checkpoints that
  // say so, but for those that are numbers in the files, whatever config.json lists.
  bool HasQuantized(std::string_view matrix) const;
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

  // Reads rows [row_begin, row_end) x columns [col_begin, col_end) of a matrix (a vector is a
  // matrix of one row) densely into dst. Exactly those bytes are requested from the file and
  // counted. UNAVAILABLE with errno's text on a read error.
  absl::Status Read(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                    int64_t col_end, void* dst) const;
  // The same of tensors of any dtype, in bytes of a row.
  absl::Status ReadBytes(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                         int64_t byte_begin, int64_t byte_end, void* dst) const;
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  Checkpoint() = default;
  absl::Status LoadConfigs();
  absl::Status LoadGenerationConfig();
  absl::Status AddFiles();
  void FindSparedMatrices();
  absl::Status AddFile(const std::string& name);
  absl::Status AddIndexedFiles(const std::filesystem::path& index);

  std::filesystem::path directory_;
  ModelConfig config_;
  GenerationDefaults generation_defaults_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
  mutable std::atomic<int64_t> bytes_read_{0};
};

}  // namespace lockstep
