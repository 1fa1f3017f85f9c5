#include "model/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "model/checkpoint/config_text.h"
#include "model/json/strict_json.h"
#include "model/stable_hash.h"
#include "model/tokenizer/special_tokens.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxFiles = 4096;

// UNAVAILABLE or PERMISSION_DENIED naming it where that cannot be told: what is hidden is not what
// is missing.
absl::StatusOr<bool> Exists(const fs::path& path) {
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (!error) return exists;
  const std::string text = absl::StrCat(path.string(), ": ", error.message());
  return error == std::errc::permission_denied ? absl::PermissionDeniedError(text)
                                               : absl::UnavailableError(text);
}

// "meta-llama/Llama-3.2-1B": one slash, not a path someone would write for a directory.
bool LooksLikeHubName(const std::string& text) {
  return std::count(text.begin(), text.end(), '/') == 1 && text.front() != '/' &&
         text.front() != '.' && text.front() != '~' && text.back() != '/';
}

// Says what was given instead of a Hugging Face directory, and what to do.
absl::Status CheckDirectory(const fs::path& directory) {
  const std::string text = directory.string();
  if (text.empty()) return absl::NotFoundError("the model directory's name is empty");
  ASSIGN_OR_RETURN(const bool is_there, Exists(directory));
  if (!is_there) {
    return absl::NotFoundError(
        LooksLikeHubName(text)
            ? absl::StrCat(text,
                           ": no such directory; a Hugging Face name must be downloaded first: "
                           "hf download ",
                           text, " --local-dir DIR")
            : absl::StrCat(text, ": no such directory"));
  }
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        text, ": not a directory; pass the directory that holds config.json and *.safetensors"));
  }
  ASSIGN_OR_RETURN(const bool has_config, Exists(directory / "config.json"));
  if (has_config) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool is_meta_layout, Exists(directory / "params.json"));
  return absl::NotFoundError(
      absl::StrCat(text, ": no config.json here",
                   is_meta_layout ? "; this is Meta's original layout, pass the Hugging Face one"
                                  : "; pass a Hugging Face model directory"));
}

// Whether a Hugging Face cache keeps the file of a snapshot there. In it
// models--OWNER--NAME/snapshots/REVISION/FILE links to ../../blobs/HASH, which may in turn link to
// what all repositories share, blobs/HA/HASH beside theirs (huggingface_hub 1.32).
bool IsHubBlob(const fs::path& snapshot, const fs::path& target) {
  if (snapshot.parent_path().filename() != "snapshots") return false;
  const fs::path repository = snapshot.parent_path().parent_path();
  if (target.parent_path() == repository / "blobs") return true;
  return absl::StartsWith(repository.filename().string(), "models--") &&
         target.parent_path().parent_path() == repository.parent_path() / "blobs";
}

// A file that an index names must be a plain name and lie in the directory, also after symlinks are
// followed, or in the Hugging Face cache that the directory is part of.
absl::Status CheckFileName(const fs::path& directory, const std::string& name) {
  const auto is_allowed = [](unsigned char c) {
    return c > ' ' && c < 0x7f && c != '/' && c != '\\';
  };
  const bool is_plain =
      std::all_of(name.begin(), name.end(), is_allowed) && absl::EndsWith(name, ".safetensors");
  if (!is_plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight_map names the file ", Quoted(name),
                     "; only plain *.safetensors names inside the model directory are allowed"));
  }
  std::error_code error;
  const fs::path home = fs::canonical(directory, error);
  const fs::path target = fs::canonical(directory / name, error);
  if (error) {
    return absl::NotFoundError(absl::StrCat("weight_map names the file ", Quoted(name),
                                            ", which is missing; download the model again"));
  }
  if (target.parent_path() != home && !IsHubBlob(home, target)) {
    return absl::InvalidArgumentError(absl::StrCat("weight_map names the file ", Quoted(name),
                                                   ", a link to ", target.string(),
                                                   " outside the model directory"));
  }
  return absl::OkStatus();
}

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

absl::StatusOr<WeightMap> ParseIndex(const fs::path& directory, std::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseStrictJson(text));
  const auto found = document.is_object() ? document.find("weight_map") : document.end();
  if (found == document.end() || !found->is_object() || found->empty()) {
    return absl::InvalidArgumentError("weight_map is missing or not an object of tensor: file");
  }
  WeightMap weight_map;
  std::set<std::string> checked;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string()) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map of ", Quoted(tensor), " is ",
                                                     QuotedJson(file), ", not a file name"));
    }
    const std::string& name = file.get_ref<const std::string&>();
    if (checked.insert(name).second) RETURN_IF_ERROR(CheckFileName(directory, name));
    weight_map.emplace(tensor, name);
  }
  if (checked.size() > kMaxFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight_map names ", checked.size(), " files, the limit is ", kMaxFiles));
  }
  return weight_map;
}

// A model fine-tuned for chats may name the token that ends its turns to the tokenizer alone. vLLM
// ends there, too (its tests/tokenization/test_get_eos.py).
void AddEndToken(const fs::path& directory, ModelConfig& config) {
  const std::optional<int32_t> end = FindEndToken(directory);
  std::vector<int32_t>& ids = config.eos_token_ids;
  if (!end || *end >= config.vocab_size) return;
  if (std::find(ids.begin(), ids.end(), *end) == ids.end()) ids.push_back(*end);
}

}  // namespace

absl::Status Checkpoint::LoadConfigs() {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadConfigText(directory_ / "config.json", kMaxConfigBytes));
  absl::StatusOr<ModelConfig> config = ParseModelConfig(text);
  if (!config.ok()) return InFile(directory_, config.status());
  config_ = *std::move(config);
  RETURN_IF_ERROR(LoadGenerationConfig());
  AddEndToken(directory_, config_);
  return absl::OkStatus();
}

absl::Status Checkpoint::LoadGenerationConfig() {
  const fs::path generation = directory_ / "generation_config.json";
  ASSIGN_OR_RETURN(const bool has_defaults, Exists(generation));
  if (!has_defaults) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string defaults, ReadTextFile(generation, kMaxConfigBytes));
  absl::StatusOr<GenerationDefaults> parsed = ParseGenerationConfig(defaults, config_);
  if (!parsed.ok()) return InFile(directory_, parsed.status());
  generation_defaults_ = *parsed;
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const std::string& name) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(directory_ / name));
  for (TensorInfo tensor : file->tensors()) {
    tensor.file_index = static_cast<int>(files_.size());
    const auto [place, is_new] = tensors_.try_emplace(tensor.name, tensor);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          directory_.string(), ": tensor ", Quoted(tensor.name), " is in two files, ",
          files_[place->second.file_index]->path().filename().string(), " and ", name));
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Checkpoint::AddIndexedFiles(const std::filesystem::path& index) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index, kMaxIndexBytes));
  const absl::StatusOr<WeightMap> weight_map = ParseIndex(directory_, text);
  if (!weight_map.ok()) return InFile(index, weight_map.status());
  std::map<std::string, int> file_indices;
  for (const auto& [tensor, file] : *weight_map) file_indices.emplace(file, 0);
  for (auto& [file, file_index] : file_indices) {
    file_index = static_cast<int>(files_.size());
    RETURN_IF_ERROR(AddFile(file));
  }
  for (const auto& [tensor, file] : *weight_map) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second.file_index != file_indices[file]) {
      return absl::InvalidArgumentError(absl::StrCat(index.string(), ": weight_map says ",
                                                     Quoted(tensor), " is in ", file,
                                                     ", which has no such tensor"));
    }
  }
  return absl::OkStatus();
}

// A single file wins over an index, as in transformers.
absl::Status Checkpoint::AddFiles() {
  const fs::path index = directory_ / "model.safetensors.index.json";
  ASSIGN_OR_RETURN(const bool is_single, Exists(directory_ / "model.safetensors"));
  if (is_single) return AddFile("model.safetensors");
  ASSIGN_OR_RETURN(const bool is_indexed, Exists(index));
  if (is_indexed) return AddIndexedFiles(index);
  bool is_pickled = false;
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    ASSIGN_OR_RETURN(const bool is_there, Exists(directory_ / name));
    is_pickled |= is_there;
  }
  return absl::NotFoundError(absl::StrCat(
      directory_.string(), ": neither model.safetensors nor model.safetensors.index.json is here",
      is_pickled ? "; convert pytorch_model.bin to safetensors first" : ""));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const fs::path& directory) {
  RETURN_IF_ERROR(CheckDirectory(directory));
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->directory_ = directory;
  RETURN_IF_ERROR(checkpoint->LoadConfigs());
  RETURN_IF_ERROR(checkpoint->AddFiles());
  checkpoint->FindSparedMatrices();
  return checkpoint;
}

bool Checkpoint::HasQuantized(std::string_view matrix) const {
  if (!config_.stored.has_value()) return false;
  const auto plain = tensors_.find(std::string(matrix) + ".weight");
  return plain == tensors_.end() || plain->second.dtype_name == "F8_E4M3";
}

void Checkpoint::FindSparedMatrices() {
  if (!config_.stored.has_value()) return;
  SparedMatrices& spared = config_.stored->spared = {};
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    for (const LayerMatrix matrix : kLayerMatrices) {
      if (!HasQuantized(LayerMatrixName(layer, matrix))) spared.Add(layer, matrix);
    }
  }
}

absl::StatusOr<const TensorInfo*> Checkpoint::Find(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_.string(), ": the checkpoint has no tensor ", Quoted(name)));
  }
  return &found->second;
}

absl::StatusOr<std::string> Checkpoint::Fingerprint(Quantization quantize) const {
  constexpr int64_t kSampleBytes = 64;
  std::string text;
  for (const auto& [name, tensor] : tensors_) {
    absl::StrAppend(&text, name, " ", tensor.dtype_name, " [", absl::StrJoin(tensor.shape, ","),
                    "] ");
    const int64_t num_bytes = std::min(kSampleBytes, tensor.num_bytes);
    std::array<char, kSampleBytes> sample;
    RETURN_IF_ERROR(files_[static_cast<size_t>(tensor.file_index)]->ReadAt(
        tensor.file_offset + (tensor.num_bytes - num_bytes) / 2, num_bytes, sample.data()));
    text.append(sample.data(), static_cast<size_t>(num_bytes));
  }
  return absl::StrFormat("%s-%016x", config_.Fingerprint(quantize), Fnv1a64(text));
}

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.num_bytes;
  return total;
}

absl::Status Checkpoint::Read(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                              int64_t col_begin, int64_t col_end, void* dst) const {
  if (!tensor.dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_.string(), ": tensor ", Quoted(tensor.name), " has dtype ",
                     tensor.dtype_name, "; supported: F32, F16, BF16"));
  }
  const int64_t num_rows = tensor.shape.size() < 2 ? 1 : tensor.shape.front();
  const int64_t element_bytes = DTypeBytes(*tensor.dtype);
  const int64_t num_cols = num_rows == 0 ? 0 : tensor.num_bytes / element_bytes / num_rows;
  const bool in_range = 0 <= row_begin && row_begin <= row_end && row_end <= num_rows &&
                        0 <= col_begin && col_begin <= col_end && col_end <= num_cols;
  if (!in_range) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_.string(), ": tensor ", Quoted(tensor.name), " is [", num_rows, ", ",
                     num_cols, "]; rows [", row_begin, ", ", row_end, ") x columns [", col_begin,
                     ", ", col_end, ") are outside"));
  }
  return ReadBytes(tensor, row_begin, row_end, col_begin * element_bytes, col_end * element_bytes,
                   dst);
}

absl::Status Checkpoint::ReadBytes(const TensorInfo& tensor, int64_t row_begin, int64_t row_end,
                                   int64_t byte_begin, int64_t byte_end, void* dst) const {
  const int64_t num_rows = tensor.shape.size() < 2 ? 1 : tensor.shape.front();
  const int64_t row_bytes = num_rows == 0 ? 0 : tensor.num_bytes / num_rows;
  const bool in_range = 0 <= row_begin && row_begin <= row_end && row_end <= num_rows &&
                        0 <= byte_begin && byte_begin <= byte_end && byte_end <= row_bytes;
  if (!in_range) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory_.string(), ": tensor ", Quoted(tensor.name), " has ", num_rows,
                     " rows of ", row_bytes, " bytes; rows [", row_begin, ", ", row_end,
                     ") x bytes [", byte_begin, ", ", byte_end, ") are outside"));
  }
  const SafetensorsFile& file = *files_[tensor.file_index];
  // Whole rows lie together in the file: one read instead of one per row.
  const bool is_contiguous = byte_end - byte_begin == row_bytes;
  const int64_t num_reads = is_contiguous ? 1 : row_end - row_begin;
  const int64_t read_bytes =
      is_contiguous ? (row_end - row_begin) * row_bytes : byte_end - byte_begin;
  int64_t offset = tensor.file_offset + row_begin * row_bytes + byte_begin;
  char* out = static_cast<char*>(dst);
  for (int64_t i = 0; i < num_reads; ++i) {
    RETURN_IF_ERROR(file.ReadAt(offset, read_bytes, out));
    bytes_read_.fetch_add(read_bytes, std::memory_order_relaxed);
    offset += row_bytes;
    out += read_bytes;
  }
  return absl::OkStatus();
}

}  // namespace lockstep
