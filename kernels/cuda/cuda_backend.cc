#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stored_rows.h"
#include "kernels/cuda/work_mark.h"

namespace lockstep::cuda {
namespace {

// A step copies its batch, what is asked of its logits and, with stages, tokens and their places: 4
// slots at most while a batch's block tables stay below 2 MiB (256 sequences of 32k tokens in
// blocks of 16). The host prepares steps before earlier ones are done, so that with slots for one
// step it would wait for the device. Rows of weights come in chunks, long enough for the bus.
constexpr int kStagingSlots = 16;
constexpr int64_t kStagingBytes = int64_t{2} << 20;

constexpr int kFp8Multiple = 16;  // of both features: what cuBLASLt asks for
constexpr int kFp8Capability = 89;

bool IsFp8(const LinearShape& shape) { return shape.quantization == Quantization::kFp8; }

// Row-major, as they lie in a checkpoint; e4m3 with a scale to each row.
class DeviceRows final : public LinearWeight {
 public:
  DeviceRows(const LinearShape& shape, int64_t element_bytes, DeviceBuffer memory,
             DeviceBuffer scales)
      : LinearWeight(shape),
        element_bytes_(element_bytes),
        memory_(std::move(memory)),
        scales_(std::move(scales)) {}
  int64_t bytes() const override { return memory_.bytes() + scales_.bytes(); }
  int64_t row_bytes() const { return shape().in_features * element_bytes_; }
  std::byte* row(int64_t index) const { return memory_.as<std::byte>() + index * row_bytes(); }
  float* scales() const { return scales_.as<float>(); }  // null unless e4m3

 private:
  int64_t element_bytes_;
  DeviceBuffer memory_;
  DeviceBuffer scales_;
};

Gemm::Weight WeightOf(const LinearWeight& weight) {
  const auto& rows = static_cast<const DeviceRows&>(weight);
  const LinearShape& shape = weight.shape();
  return {shape.out_features, shape.in_features, rows.row(0), rows.scales()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(
    const AcceleratorOptions& options) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(options));
  RETURN_IF_ERROR(backend->Start());
  return backend;
}

absl::Status CudaBackend::Start() {
  int num_devices = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&num_devices), "looking for GPUs"));
  if (options_.device < 0 || options_.device >= num_devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("GPU ", options_.device, " of ", num_devices, ", counted from 0"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options_.device), "choosing a GPU"));
  RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties_, options_.device), "asking a GPU"));
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream_.stream, cudaStreamNonBlocking), "a stream"));
  stream_.overlaps = options_.overlap_kernels && KernelsCanOverlap(stream_);
  ASSIGN_OR_RETURN(staging_, HostStaging::Create(stream_, kStagingSlots, kStagingBytes));
  ASSIGN_OR_RETURN(
      gemm_, Gemm::Create(stream_, {options_.compute, options_.deterministic, options_.notice}));
  recorder_ = std::make_unique<StepRecorder>(stream_);
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&attention_workspace_, kAttentionWorkspaceBytes),
                             "attention's workspace"));
  if (!options_.deterministic) {  // whose results are to be the same wherever they are computed
    const DType kv_dtype = options_.compute == DType::kF16 ? DType::kF16 : DType::kBF16;
    ASSIGN_OR_RETURN(chunk_kernels_,
                     ChunkKernels::Choose(kv_dtype, properties_, Workspace(), stream_));
  }
  return absl::OkStatus();
}

CudaBackend::~CudaBackend() {
  if (stream_.stream == nullptr) return;
  UseDevice();
  cudaStreamSynchronize(stream_);
  recorder_.reset();
  gemm_.reset();
  staging_.reset();
  fp8_staged_.clear();
  if (attention_workspace_ != nullptr) cudaFree(attention_workspace_);
  cudaStreamDestroy(stream_.stream);
}

void CudaBackend::UseDevice() const { CudaCheck(cudaSetDevice(options_.device), "choosing a GPU"); }

std::string CudaBackend::Description() const {
  return absl::StrFormat("cuda %d: %s, %d multiprocessors, %s%s%s; attention of chunks: %s",
                         options_.device, properties_.name, properties_.multiProcessorCount,
                         DTypeName(options_.compute),
                         options_.deterministic ? ", deterministic" : "",
                         stream_.overlaps ? ", kernels overlap" : "", chunk_kernels_.description());
}

// ---- memory ----

absl::StatusOr<DeviceBuffer> CudaBackend::Allocate(int64_t bytes) {
  UseDevice();
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat("memory of ", bytes, " bytes"));
  if (bytes == 0) return DeviceBuffer();
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(bytes)) != cudaSuccess) {
    cudaGetLastError();  // it has been told
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d bytes of GPU memory asked for, %d are free", bytes, AvailableBytes()));
  }
  held_bytes_ += bytes;
  DeviceBuffer buffer(std::shared_ptr<void>(memory,
                                            [this, bytes](void* p) {
                                              held_bytes_ -= bytes;
                                              cudaFree(p);
                                            }),
                      bytes);
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), "clearing"));
  return buffer;
}

absl::StatusOr<DeviceBuffer> CudaBackend::AllocateOnHost(int64_t bytes) {
  UseDevice();
  if (bytes <= 0) return DeviceBuffer();
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&memory, static_cast<size_t>(bytes), 0),
                             absl::StrCat(bytes, " bytes of pinned memory").c_str()));
  std::memset(memory, 0, static_cast<size_t>(bytes));
  return DeviceBuffer(std::shared_ptr<void>(memory, [](void* p) { cudaFreeHost(p); }), bytes);
}

void CudaBackend::CopyToDevice(void* device, const void* host, int64_t bytes) {
  UseDevice();
  staging_->Copy(device, host, bytes);
}

void CudaBackend::CopyToHost(void* host, const void* device, int64_t bytes) {
  if (bytes <= 0) return;
  StartCopyToHost(host, device, bytes);
  CudaCheck(cudaStreamSynchronize(stream_), "copying to the host");
}

void CudaBackend::StartCopyToHost(void* host, const void* device, int64_t bytes) {
  UseDevice();
  if (bytes <= 0) return;
  CudaCheck(
      cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
      "copying to the host");
}

absl::StatusOr<std::unique_ptr<WorkMark>> CudaBackend::MakeMark() {
  UseDevice();
  return MakeWorkMark(stream_);
}

void CudaBackend::Synchronize() {
  UseDevice();
  CudaCheck(cudaStreamSynchronize(stream_), "waiting for the GPU");
}

int64_t CudaBackend::AvailableBytes() const {
  UseDevice();
  size_t free = 0;
  size_t total = 0;
  CudaCheck(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  const auto share = static_cast<int64_t>(static_cast<double>(total) * options_.memory_fraction);
  return std::clamp<int64_t>(share - held_bytes_, 0, static_cast<int64_t>(free));
}

// ---- weights ----

absl::StatusOr<std::unique_ptr<LinearWeight>> CudaBackend::AllocateLinear(
    const LinearShape& shape) {
  LinearShape kept = shape;
  kept.quantization = Quantization::kNone;
  kept.dtype = DType::kF32;  // what is checked are sizes: all are kept in options_.compute
  RETURN_IF_ERROR(cpu::CheckLinearShape(kept));
  if (IsFp8(shape)) RETURN_IF_ERROR(PrepareFp8(shape));
  if (shape.quantization == Quantization::kInt8 || shape.quantization == Quantization::kInt4) {
    return absl::InvalidArgumentError(
        "GPUs do not compute with int8 and int4 weights yet: leave --quantize, use fp8, or use "
        "--device cpu");
  }
  const int64_t element_bytes = IsFp8(shape) ? 1 : DTypeBytes(options_.compute);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.out_features * shape.in_features, element_bytes, &bytes)) {
    return absl::ResourceExhaustedError("linear weight: too large");
  }
  RETURN_IF_ERROR(gemm_->Prepare(shape.out_features, shape.in_features, IsFp8(shape)));
  ASSIGN_OR_RETURN(DeviceBuffer memory, Allocate(bytes));
  DeviceBuffer scales;
  if (IsFp8(shape)) {
    ASSIGN_OR_RETURN(scales, Allocate(shape.out_features * int64_t{sizeof(float)}));
  }
  return std::make_unique<DeviceRows>(shape, element_bytes, std::move(memory), std::move(scales));
}

bool CudaBackend::HoldsFp8(int64_t out_features, int64_t in_features) const {
  return Capability() >= kFp8Capability && out_features % kFp8Multiple == 0 &&
         in_features % kFp8Multiple == 0;
}

absl::Status CudaBackend::PrepareFp8(const LinearShape& shape) {
  if (Capability() < kFp8Capability) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 weights need a GPU of compute capability 8.9 or later; ",
                     properties_.name, " has ", properties_.major, ".", properties_.minor));
  }
  if (!HoldsFp8(shape.out_features, shape.in_features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fp8 weights come in multiples of 16; this rank's share of a matrix is ",
                     shape.out_features, " x ", shape.in_features));
  }
  while (fp8_staged_.size() < static_cast<size_t>(kStagingSlots)) {
    ASSIGN_OR_RETURN(DeviceBuffer staged, Allocate(kStagingBytes));
    fp8_staged_.push_back(std::move(staged));
  }
  return absl::OkStatus();
}

void CudaBackend::PlaceWeights(WeightAllocator) { LS_CHECK(false) << "weights have no layout"; }

template <typename Convert, typename Issue>
void CudaBackend::StageRows(const HostRows& rows, int64_t row_bytes, const Convert& convert,
                            const Issue& issue) {
  LS_CHECK(row_bytes <= staging_->slot_bytes()) << "a row of " << row_bytes << " bytes";
  const int64_t rows_per_slot = staging_->slot_bytes() / row_bytes;
  for (int64_t row = 0; row < rows.num_rows; row += rows_per_slot) {
    const int64_t count = std::min(rows_per_slot, rows.num_rows - row);
    const auto fill = [&](std::byte* slot) {
      for (int64_t i = 0; i < count; ++i) {
        convert(static_cast<const std::byte*>(rows.data) + (row + i) * rows.row_stride_bytes,
                slot + i * row_bytes);
      }
    };
    staging_->FillAndIssue(
        fill, [&](const std::byte* slot, int index) { issue(slot, index, row, count); });
  }
}

void CudaBackend::FillValues(const LinearWeight& weight, int64_t first_row, const HostRows& rows) {
  const auto& device = static_cast<const DeviceRows&>(weight);
  const int64_t in_features = weight.shape().in_features;
  const bool is_fp8 = IsFp8(weight.shape());
  const int64_t row_bytes = in_features * DTypeBytes(options_.compute);
  const auto convert = [&](const std::byte* row, std::byte* slot) {
    ConvertRow(row, rows.dtype, in_features, options_.compute, slot);
  };
  StageRows(rows, row_bytes, convert,
            [&](const std::byte* slot, int index, int64_t row, int64_t count) {
              const int64_t to = first_row + row;
              if (!is_fp8) return staging_->IssueCopy(device.row(to), slot, count * row_bytes);
              void* staged = fp8_staged_[static_cast<size_t>(index)].data();
              staging_->IssueCopy(staged, slot, count * row_bytes);
              CudaCheck(LaunchQuantizeFp8(staged, options_.compute, count, in_features,
                                          reinterpret_cast<uint8_t*>(device.row(to)),
                                          device.scales() + to, stream_),
                        "quantizing weights");
            });
}

void CudaBackend::FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) {
  cpu::CheckHostRows(weight.shape(), first_row, rows);
  UseDevice();
  weights_are_new_ = true;
  if (rows.content == RowContent::kValues) return FillValues(weight, first_row, rows);
  LS_CHECK(IsFp8(weight.shape()));
  const auto& device = static_cast<const DeviceRows&>(weight);
  const auto fill = [&](std::byte* to, int64_t row_bytes, const auto& convert) {
    StageRows(rows, row_bytes, convert,
              [&](const std::byte* slot, int, int64_t row, int64_t count) {
                staging_->IssueCopy(to + (first_row + row) * row_bytes, slot, count * row_bytes);
              });
  };
  if (rows.content == RowContent::kQuantized) {
    const int64_t row_bytes = weight.shape().in_features;
    return fill(device.row(0), row_bytes, [&](const std::byte* row, std::byte* slot) {
      std::memcpy(slot, row, static_cast<size_t>(row_bytes));
    });
  }
  fill(reinterpret_cast<std::byte*>(device.scales()), sizeof(float),
       [&](const std::byte* row, std::byte* slot) {
         const float scale = cpu::HostElement(row, rows.dtype, 0);
         std::memcpy(slot, &scale, sizeof(scale));
       });
}

// ---- kernels ----

void CudaBackend::Embed(const EmbedArgs& args) {
  CudaCheck(LaunchEmbed(args, stream_), "embedding");
}

bool CudaBackend::BeginRows(const void* out, int64_t num_rows, int64_t width,
                            const LinearWeight* consumer) {
  if (quantized_.data == out) quantized_ = {};
  if (consumer == nullptr) return false;
  LS_CHECK_EQ(width, consumer->shape().in_features);
  if (!gemm_->WantsQuantized(WeightOf(*consumer), num_rows)) return false;
  LS_CHECK(!AreRowsToBeRead()) << "rows are quantized while others wait for their product";
  quantized_ = {out, num_rows, consumer};
  return true;
}

Gemm::Input CudaBackend::TakeRows(const LinearWeight& weight, const void* x, int64_t num_rows) {
  if (!AreRowsToBeRead()) {
    LS_CHECK(quantized_.data == nullptr || x != quantized_.data)
        << "rows quantized for a product are read twice";
    return {num_rows, x};
  }
  LS_CHECK(x == quantized_.data && &weight == quantized_.consumer &&
           num_rows == quantized_.num_rows)
      << "a product of " << num_rows << " rows comes before that of " << quantized_.num_rows
      << " rows quantized for another one";
  quantized_.is_read = true;
  const E4m3Rows rows = E4m3RowsIn(const_cast<void*>(x), num_rows, weight.shape().in_features);
  return {num_rows, rows.q, rows.scales};
}

void CudaBackend::AddRmsNorm(const RmsNormArgs& args) {
  if (!BeginRows(args.out, args.num_tokens, args.hidden, args.consumer)) {
    return CudaCheck(LaunchAddRmsNorm(args, options_.compute, stream_), "RMSNorm");
  }
  const E4m3Rows rows = E4m3RowsIn(args.out, args.num_tokens, args.hidden);
  CudaCheck(LaunchAddRmsNormFp8(args, options_.compute, rows, stream_), "RMSNorm in e4m3");
}

void CudaBackend::Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) {
  if (weights_are_new_.exchange(false)) Synchronize();  // weights are read before all else
  gemm_->Run(WeightOf(weight), TakeRows(weight, x, num_tokens), y);
}

void CudaBackend::SiluMul(const float* gate_up, int64_t num_tokens, int64_t width, void* out,
                          const LinearWeight* consumer) {
  if (!BeginRows(out, num_tokens, width, consumer)) {
    return CudaCheck(LaunchSiluMul(gate_up, num_tokens, width, out, options_.compute, stream_),
                     "SiLU");
  }
  const E4m3Rows rows = E4m3RowsIn(out, num_tokens, width);
  CudaCheck(LaunchSiluMulFp8(gate_up, num_tokens, width, options_.compute, rows, stream_),
            "SiLU in e4m3");
}

void CudaBackend::RopeAndWriteKv(const RopeArgs& args) {
  CudaCheck(LaunchRopeAndWriteKv(args, stream_), "RoPE");
}

AttentionWorkspace CudaBackend::Workspace() const {
  return {.data = attention_workspace_, .bytes = kAttentionWorkspaceBytes};
}

void CudaBackend::Attention(const AttentionArgs& args) {
  LS_CHECK(AttentionSupports(args.cache->dtype, args.cache->head_dim))
      << "attention over heads of " << args.cache->head_dim;
  const AttentionPlan plan =
      PlanAttention(*args.batch, {args.num_heads, args.cache->num_kv_heads, args.cache->head_dim},
                    properties_.multiProcessorCount, options_.deterministic,
                    chunk_kernels_.EncoderFor(*args.cache));
  const int64_t width = int64_t{args.num_heads} * args.cache->head_dim;
  BeginRows(args.out, args.batch->num_tokens, width, /*consumer=*/nullptr);
  CudaCheck(LaunchAttention(args, plan, options_.compute, Workspace(), stream_), "attention");
}

void CudaBackend::GatherRows(const float* in, const int32_t* rows, int64_t num_rows, int64_t width,
                             float* out) {
  CudaCheck(LaunchGatherRows(in, rows, num_rows, width, out, stream_), "gathering rows");
}

void CudaBackend::Add(float* dst, const float* src, int64_t count) {
  CudaCheck(LaunchAdd(dst, src, count, stream_), "adding");
}

void CudaBackend::SummarizeLogits(const LogitsSummaryArgs& args) {
  CudaCheck(LaunchSummarizeLogits(args, stream_), "summarising logits");
}

void CudaBackend::ChooseTokens(const TokenChoiceArgs& args) {
  CudaCheck(LaunchChooseTokens(args, stream_), "choosing tokens");
}

void CudaBackend::TakeChosenTokens(const ChosenToken* chosen, const int32_t* sources,
                                   int64_t num_tokens, int32_t* ids) {
  CudaCheck(LaunchTakeChosenTokens(chosen, sources, num_tokens, ids, stream_),
            "taking chosen tokens");
}

void CudaBackend::PlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                                    ChosenToken* table) {
  CudaCheck(LaunchPlaceChosenTokens(chosen, places, count, table, stream_),
            "placing chosen tokens");
}

// A replayed step tells us nothing of its rows: what it quantizes it reads itself, and where they
// lay may hold others afterwards.
absl::Status CudaBackend::Repeat(uint64_t key, const std::function<absl::Status()>& body) {
  LS_CHECK(!AreRowsToBeRead()) << "rows of before a step wait for a product";
  absl::Status status = recorder_->Repeat(key, body);
  LS_CHECK(!status.ok() || !AreRowsToBeRead()) << "rows of a step wait for a product after it";
  quantized_ = {};
  return status;
}

}  // namespace lockstep::cuda
