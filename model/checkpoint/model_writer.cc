#include "model/checkpoint/model_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/usable_cores.h"
#include "model/checkpoint/config_text.h"
#include "model/checkpoint/llama_tensors.h"
#include "model/checkpoint/model_directory.h"
#include "model/checkpoint/model_shapes.h"
#include "model/checkpoint/random_weights.h"
#include "model/checkpoint/shard_plan.h"
#include "model/checkpoint/synthetic_tokenizer.h"
#include "nlohmann/json.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr double kStandardDeviation = 0.02;
constexpr int64_t kChunkElements = int64_t{1} << 20;
constexpr int64_t kMaxThreads = 256;
constexpr int64_t kMaxShapeBytes = 1 << 20;

int64_t WeightBytes(const std::vector<PlannedFile>& files, DType dtype) {
  int64_t total = 0;
  for (const PlannedFile& file : files) {
    for (const PlannedTensor& tensor : file.tensors)
      total += tensor.num_elements * DTypeBytes(dtype);
  }
  return total;
}

// Fills the planned files chunk by chunk from several threads; the first error stops them all.
class WeightWriter {
 public:
  WeightWriter(const std::vector<PlannedFile>& files, DType dtype, uint64_t seed,
               const SynthesisProgress& progress)
      : plan_(files),
        dtype_(dtype),
        seed_(seed),
        progress_(progress),
        total_bytes_(WeightBytes(files, dtype)),
        weights_(dtype, kStandardDeviation) {}

  absl::Status Run(const std::vector<std::unique_ptr<OutputFile>>& files, int num_threads) {
    std::vector<std::thread> threads;
    for (int i = 1; i < num_threads; ++i) threads.emplace_back([&] { Work(files); });
    Work(files);
    for (std::thread& thread : threads) thread.join();
    return status_;
  }

 private:
  struct Chunk {
    size_t file = 0;
    const PlannedTensor* tensor = nullptr;
    int64_t first = 0;  // element
    int64_t count = 0;
  };

  // The next piece of work, or nothing when all is handed out or an error stopped it.
  std::optional<Chunk> NextChunk() {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (status_.ok() && file_ < plan_.size()) {
      if (tensor_ == plan_[file_].tensors.size()) {
        ++file_;
        tensor_ = 0;
        continue;
      }
      const PlannedTensor& tensor = plan_[file_].tensors[tensor_];
      const Chunk chunk = {file_, &tensor, first_,
                           std::min(kChunkElements, tensor.num_elements - first_)};
      first_ += chunk.count;
      if (first_ == tensor.num_elements) {
        ++tensor_;
        first_ = 0;
      }
      return chunk;
    }
    return std::nullopt;
  }

  void Work(const std::vector<std::unique_ptr<OutputFile>>& files) {
    std::vector<char> buffer(kChunkElements * DTypeBytes(dtype_));
    while (const std::optional<Chunk> chunk = NextChunk()) {
      Generate(*chunk, buffer.data());
      const int64_t offset = chunk->tensor->file_offset + chunk->first * DTypeBytes(dtype_);
      const int64_t num_bytes = chunk->count * DTypeBytes(dtype_);
      Report(files[chunk->file]->WriteAt(offset, buffer.data(), num_bytes), num_bytes);
    }
  }

  void Generate(const Chunk& chunk, char* buffer) const {
    const TensorSpec& spec = chunk.tensor->spec;
    if (spec.shape.size() > 1 || absl::EndsWith(spec.name, ".bias")) {
      return weights_.Fill(WeightKey(seed_, spec.name), chunk.first, chunk.count, buffer);
    }
    const uint32_t one = ElementBits(dtype_, 1.0);
    const int64_t bytes = DTypeBytes(dtype_);
    for (int64_t i = 0; i < chunk.count; ++i) std::memcpy(buffer + i * bytes, &one, bytes);
  }

  void Report(const absl::Status& status, int64_t num_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok()) return;
    status_ = status;
    done_bytes_ += num_bytes;
    if (status_.ok() && progress_ && !progress_(done_bytes_, total_bytes_)) {
      status_ = absl::CancelledError("stopped before the model was complete");
    }
  }

  const std::vector<PlannedFile>& plan_;
  const DType dtype_;
  const uint64_t seed_;
  const SynthesisProgress& progress_;
  const int64_t total_bytes_;
  const RandomWeights weights_;
  std::mutex mutex_;  // guards all below
  size_t file_ = 0;   // the next chunk: file, its tensor, its element
  size_t tensor_ = 0;
  int64_t first_ = 0;
  int64_t done_bytes_ = 0;
  absl::Status status_;
};

std::string GenerationConfigJson(const ModelConfig& config) {
  // Llama 3's sampling defaults.
  nlohmann::ordered_json out = {{"do_sample", true}, {"temperature", 0.6}, {"top_p", 0.9}};
  if (config.bos_token_id.has_value()) out["bos_token_id"] = *config.bos_token_id;
  if (!config.eos_token_ids.empty()) out["eos_token_id"] = config.eos_token_ids;
  return out.dump(1) + "\n";
}

absl::Status WriteTextFiles(const fs::path& directory, const ModelConfig& config,
                            const SyntheticTokenizer& tokenizer) {
  RETURN_IF_ERROR(WriteText(directory / "config.json", ModelConfigJson(config)));
  RETURN_IF_ERROR(WriteText(directory / "generation_config.json", GenerationConfigJson(config)));
  RETURN_IF_ERROR(WriteText(directory / "tokenizer.json", tokenizer.tokenizer_json));
  return WriteText(directory / "tokenizer_config.json", tokenizer.tokenizer_config_json);
}

absl::Status WriteWeights(const fs::path& directory, const std::vector<PlannedFile>& plan,
                          WeightWriter& writer, int num_threads) {
  ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<OutputFile>> files,
                   CreatePlannedFiles(directory, plan));
  RETURN_IF_ERROR(writer.Run(files, num_threads));
  for (const auto& file : files) RETURN_IF_ERROR(file->Close());
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ResolveShape(const std::string& shape) {
  std::error_code error;
  const absl::StatusOr<ModelConfig> built_in = BuiltInShape(shape);
  if (built_in.ok() || !fs::exists(shape, error)) return built_in;
  const fs::path path =
      fs::is_directory(shape, error) ? fs::path(shape) / "config.json" : fs::path(shape);
  ASSIGN_OR_RETURN(const std::string text, ReadConfigText(path, kMaxShapeBytes));
  return ParseModelConfig(text);
}

}  // namespace

absl::StatusOr<ModelConfig> SynthesizedConfig(const SynthesizeOptions& options) {
  ASSIGN_OR_RETURN(ModelConfig config, ResolveShape(options.shape));
  if (options.num_layers.has_value()) config.num_layers = *options.num_layers;
  if (options.dtype.has_value()) config.dtype = *options.dtype;
  return ParseModelConfig(ModelConfigJson(config));
}

absl::StatusOr<SynthesizedModel> SynthesizeModel(const SynthesizeOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, SynthesizedConfig(options));
  ASSIGN_OR_RETURN(const SyntheticTokenizer tokenizer, MakeSyntheticTokenizer(config));
  if (options.max_shard_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_shard_bytes = ", options.max_shard_bytes, " must be positive"));
  }
  ASSIGN_OR_RETURN(const fs::path output, CheckedOutput(options.output));
  const std::vector<PlannedFile> plan =
      PlanShards(LlamaTensors(config), config.dtype, options.max_shard_bytes);
  const int64_t weight_bytes = WeightBytes(plan, config.dtype);
  ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::CreateBeside(output));
  RETURN_IF_ERROR(CheckDiskSpace(directory->path(), weight_bytes));
  RETURN_IF_ERROR(WriteTextFiles(directory->path(), config, tokenizer));
  const int64_t num_cores = NumUsableCores();
  const int64_t num_threads = options.num_threads > 0 ? options.num_threads : num_cores;
  WeightWriter writer(plan, config.dtype, options.seed, options.progress);
  RETURN_IF_ERROR(WriteWeights(directory->path(), plan, writer,
                               static_cast<int>(std::min(num_threads, kMaxThreads))));
  RETURN_IF_ERROR(directory->MoveTo(output));
  return SynthesizedModel{config, weight_bytes, static_cast<int>(plan.size())};
}

}  // namespace lockstep
