#include "kernels/cuda/chunk_kernels.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/made_up_batch.h"

namespace lockstep::cuda {
namespace {

constexpr int kTokensToTile = 128 / MadeUpBatch::kGroup;
// Of the length of a row: both kernels round weights to 8 bits (bf16) or 11, by up to 2^-9 each.
constexpr double kTolerance = 1e-2;

// The two kernels' results and times over one batch.
class Comparison {
 public:
  Comparison(const ChunkTrial& trial, const TrialGround& ground)
      : trial_(trial),
        encode_(ground.encode),
        workspace_(ground.workspace),
        stream_(ground.stream) {}
  ~Comparison() {
    for (void* memory : {static_cast<void*>(out_), static_cast<void*>(failed_)}) cudaFree(memory);
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  absl::Status Prepare() {
    const int chunk = trial_.chunk;
    const MadeUpBatch::Cache cache = {trial_.kv_dtype, trial_.num_kv_heads, trial_.block_size,
                                      trial_.head_dim};
    ASSIGN_OR_RETURN(
        batch_,
        MadeUpBatch::Create({{trial_.context - chunk, chunk}, {37, 21}, {90, 1}}, cache, stream_));
    RETURN_IF_ERROR(Told(cudaMalloc(&out_, OutBytes())));
    RETURN_IF_ERROR(Told(cudaMalloc(&failed_, sizeof(*failed_))));
    RETURN_IF_ERROR(Told(cudaMemsetAsync(failed_, 0, sizeof(*failed_), stream_)));
    RETURN_IF_ERROR(Told(cudaEventCreate(&begin_)));
    return Told(cudaEventCreate(&end_));
  }

  // What is wrong with wgmma, or "".
  absl::StatusOr<std::string> Check() {
    for (const int64_t split_tokens : {int64_t{192}, WholeContext()}) {
      ASSIGN_OR_RETURN(const std::vector<float> want, Results(split_tokens, nullptr));
      RETURN_IF_ERROR(batch_->CutInto(split_tokens, true, workspace_, stream_));
      if (const cudaError_t error = Issue(encode_); error != cudaSuccess) {
        return absl::StrCat("is refused: ", cudaGetErrorString(error));
      }
      ASSIGN_OR_RETURN(const std::vector<float> got, Results(split_tokens, encode_));
      uint32_t failed = 0;
      RETURN_IF_ERROR(Read(&failed, failed_, sizeof(failed)));
      if (failed != 0) return "waits in vain";
      if (const std::string wrong = Difference(got, want); !wrong.empty()) return wrong;
    }
    return "";
  }

  // Of one run, the better of two turns.
  absl::StatusOr<std::pair<double, double>> TimesOfWgmmaAndMma() {
    double best[2] = {INFINITY, INFINITY};
    for (int turn = 0; turn < 2; ++turn) {
      for (const int other : {1, 0}) {
        ASSIGN_OR_RETURN(const double seconds, Time(other == 0 ? encode_ : nullptr));
        best[other] = std::min(best[other], seconds);
      }
    }
    return std::pair(best[0], best[1]);
  }
  double flops() const { return batch_->flops(); }

 private:
  static absl::Status Told(cudaError_t error) {
    return CudaStatus(error, "the trial of attention by wgmma");
  }
  size_t OutBytes() const { return static_cast<size_t>(batch_->out_elements()) * sizeof(float); }
  int64_t WholeContext() const {
    return (trial_.context + kAttentionTile - 1) / kAttentionTile * kAttentionTile;
  }
  cudaError_t Issue(TensorMapEncoder encode) {
    AttentionWorkspace workspace = workspace_;
    workspace.failed_waits = failed_;
    return LaunchAttention(batch_->Args(out_), DType::kF32, workspace, encode, stream_);
  }
  absl::Status Read(void* to, const void* from, size_t bytes) {
    RETURN_IF_ERROR(Told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_)));
    return Told(cudaStreamSynchronize(stream_));
  }

  absl::StatusOr<std::vector<float>> Results(int64_t split_tokens, TensorMapEncoder encode) {
    RETURN_IF_ERROR(Told(cudaMemsetAsync(out_, 0xff, OutBytes(), stream_)));
    RETURN_IF_ERROR(batch_->CutInto(split_tokens, encode != nullptr, workspace_, stream_));
    RETURN_IF_ERROR(Told(Issue(encode)));
    std::vector<float> results(static_cast<size_t>(batch_->out_elements()));
    RETURN_IF_ERROR(Read(results.data(), out_, OutBytes()));
    return results;
  }

  // "" when all rows are near each other; NaN is near nothing.
  std::string Difference(const std::vector<float>& got, const std::vector<float>& want) const {
    const auto width = static_cast<size_t>(trial_.head_dim);
    for (size_t begin = 0; begin < want.size(); begin += width) {
      double error = 0.0;
      double length = 0.0;
      for (size_t i = begin; i < begin + width; ++i) {
        error += std::pow(double{got[i]} - want[i], 2);
        length += std::pow(double{want[i]}, 2);
      }
      if (error <= kTolerance * kTolerance * length) continue;
      return absl::StrFormat("is wrong: token %d of head %d is off by %.2g of its length",
                             begin / width / static_cast<size_t>(batch_->num_heads()),
                             begin / width % static_cast<size_t>(batch_->num_heads()),
                             std::sqrt(error / length));
    }
    return "";
  }

  absl::StatusOr<double> Time(TensorMapEncoder encode) {
    RETURN_IF_ERROR(batch_->CutInto(WholeContext(), encode != nullptr, workspace_, stream_));
    RETURN_IF_ERROR(Told(Issue(encode)));
    RETURN_IF_ERROR(Told(cudaEventRecord(begin_, stream_)));
    for (int i = 0; i < trial_.repeats; ++i) RETURN_IF_ERROR(Told(Issue(encode)));
    RETURN_IF_ERROR(Told(cudaEventRecord(end_, stream_)));
    RETURN_IF_ERROR(Told(cudaStreamSynchronize(stream_)));
    float ms = 0;
    RETURN_IF_ERROR(Told(cudaEventElapsedTime(&ms, begin_, end_)));
    return 1e-3 * std::max(double{ms}, 1e-6) / trial_.repeats;
  }

  const ChunkTrial trial_;
  const TensorMapEncoder encode_;
  const AttentionWorkspace workspace_;
  const cudaStream_t stream_;
  std::unique_ptr<MadeUpBatch> batch_;
  float* out_ = nullptr;
  uint32_t* failed_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// "heads of 128 by wgmma (612 TFLOP/s, mma.sync 398)"
std::string Describe(int head_dim, const ChunkVerdict& verdict) {
  const std::string heads = absl::StrCat("heads of ", head_dim, " by ");
  if (!verdict.wrong.empty()) return absl::StrCat(heads, "mma.sync (wgmma ", verdict.wrong, ")");
  const bool wgmma = verdict.prefers_wgmma();
  const double first = wgmma ? verdict.wgmma_flops_per_s : verdict.mma_flops_per_s;
  const double second = wgmma ? verdict.mma_flops_per_s : verdict.wgmma_flops_per_s;
  return absl::StrFormat("%s%s (%.0f TFLOP/s, %s %.0f)", heads, wgmma ? "wgmma" : "mma.sync",
                         1e-12 * first, wgmma ? "mma.sync" : "wgmma", 1e-12 * second);
}

}  // namespace

ChunkTrial ChunkTrial::For(int head_dim, int num_multiprocessors) {
  ChunkTrial trial;
  trial.head_dim = head_dim;
  trial.num_kv_heads = std::clamp(num_multiprocessors / 16, 1, 8);
  // Two blocks to each multiprocessor, the last one not whole.
  const int tiles = std::max(2 * num_multiprocessors / trial.num_kv_heads, 1);
  trial.chunk = tiles * kTokensToTile - 5;
  trial.context = std::max(std::min(32 * num_multiprocessors, 4096), trial.chunk + 40);
  trial.repeats = std::clamp(num_multiprocessors / 10, 1, 10);
  return trial;
}

absl::StatusOr<std::string> CheckWgmma(const ChunkTrial& trial, const TrialGround& ground) {
  Comparison comparison(trial, ground);
  RETURN_IF_ERROR(comparison.Prepare());
  return comparison.Check();
}

absl::StatusOr<ChunkVerdict> TryWgmma(const ChunkTrial& trial, const TrialGround& ground) {
  if (!WgmmaAttentionIsSound(trial.kv_dtype, trial.head_dim))
    return ChunkVerdict{"is not compiled as it should be"};
  Comparison comparison(trial, ground);
  RETURN_IF_ERROR(comparison.Prepare());
  ASSIGN_OR_RETURN(const std::string wrong, comparison.Check());
  if (!wrong.empty()) return ChunkVerdict{wrong};
  ASSIGN_OR_RETURN(const auto times, comparison.TimesOfWgmmaAndMma());
  return ChunkVerdict{"", comparison.flops() / times.first, comparison.flops() / times.second};
}

absl::StatusOr<OtherBlocks> CheckOtherBlocks(DType kv_dtype, int head_dim,
                                             const TrialGround& ground) {
  OtherBlocks others;
  for (const int block_size : {8, 32, 64}) {
    const ChunkTrial trial = {.kv_dtype = kv_dtype,
                              .head_dim = head_dim,
                              .block_size = block_size,
                              .chunk = 59,
                              .context = 330};
    ASSIGN_OR_RETURN(const std::string wrong, CheckWgmma(trial, ground));
    if (wrong.empty()) {
      others.right.push_back(block_size);
    } else {
      absl::StrAppend(&others.wrong, ", over blocks of ", block_size, " by mma.sync (wgmma ", wrong,
                      ")");
    }
  }
  return others;
}

absl::Status ChunkKernels::ChooseFor(const ChunkTrial& trial, const TrialGround& ground) {
  ASSIGN_OR_RETURN(const ChunkVerdict verdict, TryWgmma(trial, ground));
  absl::StrAppend(&description_, description_.empty() ? "" : ", ",
                  Describe(trial.head_dim, verdict));
  if (!verdict.prefers_wgmma()) return absl::OkStatus();
  ASSIGN_OR_RETURN(OtherBlocks others, CheckOtherBlocks(kv_dtype_, trial.head_dim, ground));
  others.right.push_back(trial.block_size);
  (trial.head_dim == 64 ? of_64_ : of_128_) = {ground.encode, std::move(others.right)};
  description_ += others.wrong;
  return absl::OkStatus();
}

absl::StatusOr<ChunkKernels> ChunkKernels::Choose(DType kv_dtype, const cudaDeviceProp& device,
                                                  const AttentionWorkspace& workspace,
                                                  cudaStream_t stream) {
  ChunkKernels kernels;
  kernels.kv_dtype_ = kv_dtype;
  const TensorMapEncoder encode = FindTensorMapEncoder(device);
  if (encode == nullptr) {
    if (device.major == 9) kernels.description_ = "mma.sync (the driver is too old for wgmma)";
    return kernels;
  }
  kernels.description_.clear();
  for (const int head_dim : {64, 128}) {
    ChunkTrial trial = ChunkTrial::For(head_dim, device.multiProcessorCount);
    trial.kv_dtype = kv_dtype;
    const absl::Status chosen = kernels.ChooseFor(trial, {encode, workspace, stream});
    if (!chosen.ok()) {
      return absl::UnavailableError(
          absl::StrCat(chosen.message(), "; --deterministic does without it"));
    }
  }
  const bool has_chosen_it = kernels.of_64_.encode != nullptr || kernels.of_128_.encode != nullptr;
  if (has_chosen_it) kernels.description_ += ", over fp8 caches by mma.sync";
  return kernels;
}

TensorMapEncoder ChunkKernels::EncoderFor(const KvCacheView& cache) const {
  if (cache.dtype != kv_dtype_ || !WgmmaAttentionSupports(cache)) return nullptr;
  const Chosen& chosen = cache.head_dim == 64 ? of_64_ : of_128_;
  const auto& sizes = chosen.block_sizes;
  const bool is_tried = std::find(sizes.begin(), sizes.end(), cache.block_size) != sizes.end();
  return is_tried ? chosen.encode : nullptr;
}

}  // namespace lockstep::cuda
