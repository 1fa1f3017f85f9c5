#include "model/checkpoint/model_quantizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/text_file.h"
#include "kernels/base/usable_cores.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/host_rows.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config_text.h"
#include "model/checkpoint/llama_tensors.h"
#include "model/checkpoint/model_directory.h"
#include "model/checkpoint/stored_matrix.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRowsTogether = 64;
constexpr int64_t kCopyBytes = 8 << 20;

// A tensor of the output, by its place in the plan.
struct Place {
  size_t file = 0;
  int64_t offset = 0;
};

// Rows of a matrix to quantize, or bytes of a tensor to copy.
struct Task {
  const StoredMatrix* matrix = nullptr;
  std::string name = {};  // the matrix's
  int64_t columns = 0;
  QuantizedGroups groups = {};  // of a row, which is not cut
  Place values = {};
  Place scales = {};
  const TensorInfo* copied = nullptr;
  Range part = {};  // rows, or bytes
};

class ModelQuantizer {
 public:
  ModelQuantizer(const QuantizeOptions& options, const Checkpoint& checkpoint,
                 const cpu::QuantizedKernels& kernels)
      : options_(options),
        checkpoint_(checkpoint),
        bits_(QuantizedBits(options.quantization)),
        quantize_(bits_ == 8 ? kernels.quantize_int8 : kernels.quantize_int4) {}

  absl::Status Plan();
  const std::vector<PlannedFile>& files() const { return plan_; }
  int64_t output_bytes() const { return output_bytes_; }
  absl::Status Write(const std::vector<std::unique_ptr<OutputFile>>& files, int num_threads);

 private:
  struct Buffers {
    Staging staging;
    std::vector<float> wide;
    std::vector<uint8_t> values;
    std::vector<uint16_t> scales;
  };

  absl::Status PlanMatrix(const TensorSpec& spec, std::vector<PlannedTensor>& tensors);
  void PlacePlanned();
  void Work(const std::vector<std::unique_ptr<OutputFile>>& files);
  absl::Status QuantizeRows(const Task& task, Buffers& buffers,
                            const std::vector<std::unique_ptr<OutputFile>>& files);
  void QuantizeRow(const Task& task, const float* row, uint8_t* values, uint16_t* scales) const;
  absl::Status Copy(const Task& task, Buffers& buffers,
                    const std::vector<std::unique_ptr<OutputFile>>& files);
  int64_t PackedRowBytes(int64_t columns) const { return (columns * bits_ + 31) / 32 * 4; }
  void Report(const absl::Status& status, int64_t num_bytes);

  const QuantizeOptions& options_;
  const Checkpoint& checkpoint_;
  const int bits_;
  uint16_t (*const quantize_)(const float* w, int count, int8_t* q);
  std::vector<PlannedFile> plan_;
  std::vector<std::unique_ptr<StoredMatrix>> matrices_;
  std::vector<std::pair<Place, std::vector<int64_t>>> shapes_;  // of matrices
  std::vector<Task> tasks_;
  int64_t output_bytes_ = 0;

  std::atomic<size_t> next_{0};
  std::mutex mutex_;  // guards what follows
  int64_t done_bytes_ = 0;
  absl::Status status_;
};

// A group with a number that is not has the scale NaN.
bool IsFinite(uint16_t bf16_bits) { return std::isfinite(ToFloat(BF16{bf16_bits})); }

bool IsLayerMatrix(const TensorSpec& spec) {
  return spec.shape.size() == 2 && absl::StartsWith(spec.name, "model.layers.");
}

absl::Status ModelQuantizer::Plan() {
  std::vector<PlannedTensor> tensors;
  for (const TensorSpec& spec : LlamaTensors(checkpoint_.config())) {
    if (IsLayerMatrix(spec)) {
      RETURN_IF_ERROR(PlanMatrix(spec, tensors));
      continue;
    }
    ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Find(spec.name));
    tensors.push_back(TensorToWrite(spec, tensor->dtype_name, DTypeBytes(*tensor->dtype)));
    for (int64_t byte = 0; byte < tensor->num_bytes; byte += kCopyBytes) {
      tasks_.push_back(
          {.copied = tensor, .part = {byte, std::min(byte + kCopyBytes, tensor->num_bytes)}});
    }
  }
  for (const PlannedTensor& tensor : tensors) output_bytes_ += tensor.num_bytes;
  plan_ = PlanFiles(std::move(tensors), options_.max_shard_bytes);
  PlacePlanned();
  return absl::OkStatus();
}

absl::Status ModelQuantizer::PlanMatrix(const TensorSpec& spec,
                                        std::vector<PlannedTensor>& tensors) {
  const std::string name = spec.name.substr(0, spec.name.size() - std::string(".weight").size());
  const int64_t rows = spec.shape[0];
  const int64_t columns = spec.shape[1];
  ASSIGN_OR_RETURN(StoredMatrix matrix, OpenMatrix(checkpoint_, {name, rows, columns}));
  matrices_.push_back(std::make_unique<StoredMatrix>(std::move(matrix)));
  const QuantizedGroups groups{columns, QuantizedGroup(options_.quantization)};
  tensors.push_back(
      TensorToWrite({name + ".weight_packed", {rows, PackedRowBytes(columns) / 4}}, "I32", 4));
  tensors.push_back(TensorToWrite({name + ".weight_scale", {rows, groups.per_slice()}}, "BF16", 2));
  tensors.push_back(TensorToWrite({name + ".weight_shape", {2}}, "I64", 8));
  for (int64_t row = 0; row < rows; row += kRowsTogether) {
    tasks_.push_back({.matrix = matrices_.back().get(),
                      .name = name,
                      .columns = columns,
                      .groups = groups,
                      .part = {row, std::min(row + kRowsTogether, rows)}});
  }
  return absl::OkStatus();
}

// Tasks are in the order of the planned tensors.
void ModelQuantizer::PlacePlanned() {
  auto task = tasks_.begin();
  for (size_t file = 0; file < plan_.size(); ++file) {
    for (const PlannedTensor& tensor : plan_[file].tensors) {
      const Place place = {file, tensor.file_offset};
      if (absl::EndsWith(tensor.spec.name, ".weight_packed")) {
        const StoredMatrix* matrix = task->matrix;
        for (auto each = task; each != tasks_.end() && each->matrix == matrix; ++each) {
          each->values = place;
        }
      } else if (absl::EndsWith(tensor.spec.name, ".weight_scale")) {
        const StoredMatrix* matrix = task->matrix;
        for (auto each = task; each != tasks_.end() && each->matrix == matrix; ++each) {
          each->scales = place;
        }
      } else if (absl::EndsWith(tensor.spec.name, ".weight_shape")) {
        const StoredMatrix* matrix = task->matrix;
        int64_t rows = 0;
        const int64_t columns = task->columns;
        for (; task != tasks_.end() && task->matrix == matrix; ++task) rows = task->part.end;
        shapes_.push_back({place, {rows, columns}});
      } else {
        const TensorInfo* copied = task->copied;
        for (; task != tasks_.end() && task->copied == copied; ++task) task->values = place;
      }
    }
  }
}

absl::Status ModelQuantizer::Write(const std::vector<std::unique_ptr<OutputFile>>& files,
                                   int num_threads) {
  for (const auto& [place, shape] : shapes_) {
    RETURN_IF_ERROR(files[place.file]->WriteAt(place.offset, shape.data(), 2 * sizeof(int64_t)));
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back([&] { Work(files); });
  Work(files);
  for (std::thread& thread : threads) thread.join();
  return status_;
}

void ModelQuantizer::Work(const std::vector<std::unique_ptr<OutputFile>>& files) {
  Buffers buffers;
  for (size_t i = next_++; i < tasks_.size(); i = next_++) {
    const Task& task = tasks_[i];
    const absl::Status status =
        task.matrix != nullptr ? QuantizeRows(task, buffers, files) : Copy(task, buffers, files);
    const int64_t bytes =
        task.matrix != nullptr ? task.part.size() * PackedRowBytes(task.columns) : task.part.size();
    Report(status, bytes);
  }
}

void ModelQuantizer::Report(const absl::Status& status, int64_t num_bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_.Update(status);
  done_bytes_ += num_bytes;
  if (status_.ok() && options_.progress && !options_.progress(done_bytes_, output_bytes_)) {
    status_ = absl::CancelledError("stopped before the model was complete");
  }
  if (!status_.ok()) next_ = tasks_.size();
}

absl::Status ModelQuantizer::QuantizeRows(const Task& task, Buffers& buffers,
                                          const std::vector<std::unique_ptr<OutputFile>>& files) {
  const int64_t row_bytes = PackedRowBytes(task.columns);
  const int64_t num_groups = task.groups.per_slice();
  ASSIGN_OR_RETURN(const HostRows rows,
                   task.matrix->sources[0]->Read(task.part, {0, task.columns}, buffers.staging));
  buffers.wide.resize(static_cast<size_t>(task.columns));
  buffers.values.assign(static_cast<size_t>(task.part.size() * row_bytes), 0);
  buffers.scales.resize(static_cast<size_t>(task.part.size() * num_groups));
  for (int64_t row = 0; row < task.part.size(); ++row) {
    WidenRow(static_cast<const std::byte*>(rows.data) + row * rows.row_stride_bytes, rows.dtype,
             task.columns, buffers.wide.data());
    uint16_t* const scales = &buffers.scales[static_cast<size_t>(row * num_groups)];
    QuantizeRow(task, buffers.wide.data(), &buffers.values[static_cast<size_t>(row * row_bytes)],
                scales);
    if (!std::all_of(scales, scales + num_groups, IsFinite)) {
      return absl::InvalidArgumentError(absl::StrCat(
          checkpoint_.directory().string(), ": the matrix ", task.name, " has a NaN or an infinity",
          " in row ", task.part.begin + row, ", of which there are no integers"));
    }
  }
  RETURN_IF_ERROR(files[task.values.file]->WriteAt(task.values.offset + task.part.begin * row_bytes,
                                                   buffers.values.data(),
                                                   task.part.size() * row_bytes));
  return files[task.scales.file]->WriteAt(task.scales.offset + task.part.begin * num_groups * 2,
                                          buffers.scales.data(), task.part.size() * num_groups * 2);
}

void ModelQuantizer::QuantizeRow(const Task& task, const float* row, uint8_t* values,
                                 uint16_t* scales) const {
  const int zero = QuantizedZero(options_.quantization);
  for (int64_t g = 0; g < task.groups.per_slice(); ++g) {
    const int64_t first = g * task.groups.group;
    const int size = task.groups.size(g);
    int8_t q[kMaxQuantizedGroup];
    scales[g] = quantize_(row + first, size, q);
    for (int64_t k = first; k < first + size; ++k) {
      const int value = q[k - first] + zero;
      uint8_t& byte = values[k * bits_ / 8];
      byte = static_cast<uint8_t>(bits_ == 8 ? value : byte | value << (k % 2 * 4));
    }
  }
}

absl::Status ModelQuantizer::Copy(const Task& task, Buffers& buffers,
                                  const std::vector<std::unique_ptr<OutputFile>>& files) {
  buffers.staging.stored.resize(static_cast<size_t>(task.part.size()));
  RETURN_IF_ERROR(checkpoint_.files()[static_cast<size_t>(task.copied->file_index)]->ReadAt(
      task.copied->file_offset + task.part.begin, task.part.size(), buffers.staging.stored.data()));
  return files[task.values.file]->WriteAt(task.values.offset + task.part.begin,
                                          buffers.staging.stored.data(), task.part.size());
}

// config.json with what was done to the matrices.
absl::Status WriteConfig(const fs::path& input, const fs::path& output, Quantization quantization) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(input));
  auto config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(input.string(), ": not a JSON object"));
  }
  config.erase("compression_config");
  config["quantization_config"] = PackedQuantizationJson(quantization);
  return WriteText(output, config.dump(1) + "\n");
}

// Tokenizer, generation defaults, chat template, licence: whatever is small and no weights.
bool IsCopied(const std::string& name) {
  constexpr absl::string_view kEndings[] = {".json", ".jinja", ".model", ".txt", ".md"};
  if (name == "config.json" || name == kModelOptFile) return false;  // of the input's matrices
  if (absl::EndsWith(name, ".safetensors.index.json")) return false;
  return absl::StartsWith(name, "LICENSE") ||
         std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](absl::string_view ending) { return absl::EndsWith(name, ending); });
}

absl::Status CopyFile(const fs::directory_entry& from, const fs::path& output) {
  constexpr uintmax_t kMaxBytes = 256 << 20;
  std::error_code error;
  if (!from.is_regular_file(error) && !error) return absl::OkStatus();
  const uintmax_t num_bytes = error ? 0 : from.file_size(error);
  if (!error && num_bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(from.path().string(), " has ", num_bytes,
                                                   " bytes, at most ", kMaxBytes,
                                                   " are copied beside the weights"));
  }
  if (!error) fs::copy_file(from.path(), output / from.path().filename(), error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(from.path().string(), ": ", error.message()));
}

// A directory that cannot be listed may hold such files, and a model without its tokenizer is
// another one.
absl::Status CopyOtherFiles(const fs::path& input, const fs::path& output) {
  std::error_code error;
  fs::directory_iterator entry(input, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (!IsCopied(entry->path().filename().string())) continue;
    RETURN_IF_ERROR(CopyFile(*entry, output));
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(input.string(), ": cannot be listed: ", error.message()));
}

}  // namespace

absl::StatusOr<QuantizedModel> QuantizeModel(const QuantizeOptions& options) {
  ASSIGN_OR_RETURN(const fs::path output, CheckedOutput(options.output));
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(options.input));
  RETURN_IF_ERROR(CheckLlamaTensors(*checkpoint));
  const auto& stored = checkpoint->config().stored;
  if (stored.has_value() && stored->native() != Quantization::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.input.string(), ": is quantized already: ", stored->name));
  }
  ASSIGN_OR_RETURN(const cpu::VectorKernels* kernels, cpu::FindKernels("auto"));
  ModelQuantizer quantizer(options, *checkpoint, *kernels->quantized);
  RETURN_IF_ERROR(quantizer.Plan());
  ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::CreateBeside(output));
  RETURN_IF_ERROR(CheckDiskSpace(directory->path(), quantizer.output_bytes()));
  RETURN_IF_ERROR(WriteConfig(options.input / "config.json", directory->path() / "config.json",
                              options.quantization));
  RETURN_IF_ERROR(CopyOtherFiles(options.input, directory->path()));
  ASSIGN_OR_RETURN(const auto files, CreatePlannedFiles(directory->path(), quantizer.files()));
  const int num_cores = NumUsableCores();
  RETURN_IF_ERROR(
      quantizer.Write(files, options.num_threads > 0 ? options.num_threads : num_cores));
  for (const auto& file : files) RETURN_IF_ERROR(file->Close());
  ASSIGN_OR_RETURN(const auto written, Checkpoint::Open(directory->path()));
  RETURN_IF_ERROR(directory->MoveTo(output));
  return QuantizedModel{checkpoint->total_bytes(), quantizer.output_bytes(),
                        static_cast<int>(quantizer.files().size()),
                        written->config().LoadingText(Quantization::kNone, /*tp=*/1)};
}

}  // namespace lockstep
