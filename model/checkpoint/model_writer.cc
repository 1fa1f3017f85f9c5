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
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/llama_tensors.h"
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

absl::Status WriteError(const fs::path& path, int error) {
  const std::string message = absl::StrCat(path.string(), ": ", std::strerror(error));
  return error == ENOSPC ? absl::ResourceExhaustedError(message) : absl::UnavailableError(message);
}

// One output file, closed on destruction.
class OutputFile {
 public:
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const fs::path& path) {
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return WriteError(path, errno);
    return std::unique_ptr<OutputFile>(new OutputFile(path, fd));
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (fd_ >= 0) close(fd_);
  }

  // Safe to call from several threads. One at a time writes: the kernel locks the file anyway, and
  // its waiters spin (measured: 4 threads writing 2.5 GB took 12 s of system time without this
  // mutex).
  absl::Status WriteAt(int64_t offset, const void* data, int64_t num_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const char* from = static_cast<const char*>(data);
    while (num_bytes > 0) {
      const ssize_t written = pwrite(fd_, from, static_cast<size_t>(num_bytes), offset);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return WriteError(path_, errno);
      from += written;
      offset += written;
      num_bytes -= written;
    }
    return absl::OkStatus();
  }

  // Some file systems report a full disk only here.
  absl::Status Close() {
    return close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : WriteError(path_, errno);
  }

 private:
  OutputFile(fs::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  const fs::path path_;
  int fd_;
  std::mutex mutex_;
};

absl::Status WriteText(const fs::path& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  RETURN_IF_ERROR(file->WriteAt(0, text.data(), static_cast<int64_t>(text.size())));
  return file->Close();
}

// A directory that disappears with everything in it unless it is moved to its final name.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> CreateBeside(const fs::path& output) {
    fs::path path = output;
    path += absl::StrCat(".partial-", getpid());
    std::error_code error;
    fs::create_directories(path, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat(path.string(), ": ", error.message()));
    }
    return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(std::move(path)));
  }
  ~TemporaryDirectory() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const fs::path& path() const { return path_; }

  // An empty directory of that name is replaced.
  absl::Status MoveTo(const fs::path& output) {
    std::error_code error;
    fs::rename(path_, output, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat(output.string(), ": ", error.message()));
    }
    path_.clear();
    return absl::OkStatus();
  }

 private:
  explicit TemporaryDirectory(fs::path path) : path_(std::move(path)) {}
  fs::path path_;
};

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
    if (spec.shape.size() > 1) {
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

absl::Status CheckOutput(const fs::path& output) {
  if (output.empty()) return absl::InvalidArgumentError("the output directory's name is empty");
  std::error_code error;
  if (fs::exists(output, error) &&
      !(fs::is_directory(output, error) && fs::is_empty(output, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat(output.string(), ": exists already; remove it or choose another directory"));
  }
  return absl::OkStatus();
}

absl::Status CheckDiskSpace(const fs::path& directory, int64_t needed_bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  constexpr int64_t kMarginBytes = 64 << 20;  // directory entries, tokenizer, configs
  if (error || space.available >= static_cast<uintmax_t>(needed_bytes + kMarginBytes)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: the model takes %.1f GB and the disk has %.1f GB free; choose a smaller shape, fewer "
      "layers or another disk",
      directory.parent_path().string(), needed_bytes * 1e-9, space.available * 1e-9));
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
  std::vector<std::unique_ptr<OutputFile>> files;
  for (const PlannedFile& planned : plan) {
    ASSIGN_OR_RETURN(files.emplace_back(), OutputFile::Create(directory / planned.name));
    RETURN_IF_ERROR(files.back()->WriteAt(0, planned.header.data(),
                                          static_cast<int64_t>(planned.header.size())));
  }
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
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": cannot be read"));
  }
  return ParseModelConfig(text.str());
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
  // Without a trailing slash, so that a suffix can be added.
  const fs::path output =
      options.output.has_filename() ? options.output : options.output.parent_path();
  RETURN_IF_ERROR(CheckOutput(output));
  const std::vector<PlannedFile> plan =
      PlanShards(LlamaTensors(config), config.dtype, options.max_shard_bytes);
  const int64_t weight_bytes = WeightBytes(plan, config.dtype);
  ASSIGN_OR_RETURN(const auto directory, TemporaryDirectory::CreateBeside(output));
  RETURN_IF_ERROR(CheckDiskSpace(directory->path(), weight_bytes));
  RETURN_IF_ERROR(WriteTextFiles(directory->path(), config, tokenizer));
  if (plan.size() > 1) {
    RETURN_IF_ERROR(WriteText(directory->path() / "model.safetensors.index.json",
                              ShardIndexJson(plan, config.dtype)));
  }
  const int64_t num_cores = std::max(1u, std::thread::hardware_concurrency());
  const int64_t num_threads = options.num_threads > 0 ? options.num_threads : num_cores;
  WeightWriter writer(plan, config.dtype, options.seed, options.progress);
  RETURN_IF_ERROR(WriteWeights(directory->path(), plan, writer,
                               static_cast<int>(std::min(num_threads, kMaxThreads))));
  RETURN_IF_ERROR(directory->MoveTo(output));
  return SynthesizedModel{config, weight_bytes, static_cast<int>(plan.size())};
}

}  // namespace lockstep
