#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_rows.h"
#include "kernels/cuda/device_support.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/skinny_gemm.h"
#include "kernels/cuda/work_mark.h"

namespace lockstep::cuda {
namespace {

// Left free where others take of the same memory, of what is not counted on.
constexpr int64_t kMostSpareBytes = int64_t{2} << 30;

struct DeviceBytes {
  int64_t free = 0;
  int64_t total = 0;
};

// Of the thread's device.
DeviceBytes FreeAndTotal() {
  size_t free = 0;
  size_t total = 0;
  CudaCheck(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
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
  TakeNoteOfGpu(options_.device);
  RETURN_IF_ERROR(CheckKernelsRun(properties_));
  RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream_.stream, cudaStreamNonBlocking), "a stream"));
  free_at_start_ = FreeAndTotal().free;
  std::string refused;
  stream_.overlaps = options_.overlap_kernels && KernelsCanOverlap(stream_, &refused);
  if (!refused.empty() && options_.notice != nullptr) {
    options_.notice(absl::StrCat("kernels do not overlap, which costs speed: ", refused));
  }
  ASSIGN_OR_RETURN(offloads_, KvCopyStream::Create(stream_, LaunchOffloadKv));
  ASSIGN_OR_RETURN(prefetches_, KvCopyStream::Create(stream_, LaunchRestoreKv));
  ASSIGN_OR_RETURN(staging_, HostStaging::Create(stream_, kStagingSlots, kStagingBytes));
  ASSIGN_OR_RETURN(DeviceBuffer rows, Allocate(RowLoader::DeviceBytes(*staging_)));
  row_loader_ = std::make_unique<RowLoader>(*staging_, stream_, std::move(rows));
  stream_.holds_next = &holds_next_;  // not of loaders' threads, which issue no steps
  ASSIGN_OR_RETURN(
      gemm_, Gemm::Create(stream_, {options_.compute, options_.deterministic, options_.notice}));
  recorder_ = std::make_unique<StepRecorder>(stream_);
  RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&attention_workspace_, static_cast<size_t>(Workspace().bytes)),
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
  row_loader_.reset();
  staging_.reset();
  offloads_.reset();
  prefetches_.reset();
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
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d bytes of GPU memory asked for, %d are free", bytes, FreeAndTotal().free));
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
  offloads_->Synchronize();
  prefetches_->Synchronize();
}

DeviceMemory CudaBackend::Memory() const {
  UseDevice();
  const auto [free, total] = FreeAndTotal();
  DeviceMemory memory = {
      .total_bytes = total,
      .budget_bytes = static_cast<int64_t>(static_cast<double>(total) * options_.memory_fraction),
      .held_bytes = held_bytes_};
  if (!options_.is_shared) {
    memory.other_bytes = std::max<int64_t>(free_at_start_ - free - memory.held_bytes, 0);
    memory.foreign_bytes = total - free_at_start_;
  }
  // Of a device that others fill, too, not all that they leave.
  const int64_t spare = std::min((total - memory.budget_bytes) / 2, kMostSpareBytes);
  const int64_t ours = memory.budget_bytes - memory.held_bytes - memory.other_bytes;
  memory.left_bytes = std::min(ours, free - spare);
  return memory;
}

// ---- kernels ----

void CudaBackend::Embed(const EmbedArgs& args) {
  CudaCheck(LaunchEmbed(args, stream_), "embedding");
}

bool CudaBackend::BeginRows(const void* out, int64_t num_rows, int64_t width,
                            const LinearWeight* consumer) {
  ForgetRows(out);
  if (consumer == nullptr) return false;
  LS_CHECK_EQ(width, consumer->shape().in_features);
  if (!gemm_->WantsQuantized(WeightOf(*consumer), num_rows)) return false;
  LS_CHECK(!AreRowsToBeRead()) << "rows are quantized while others wait for their product";
  quantized_ = {.data = out, .num_rows = num_rows, .consumer = consumer};
  return true;
}

Gemm::Input CudaBackend::TakeRows(const LinearWeight& weight, const void* x, int64_t num_rows) {
  if (!AreRowsToBeRead()) {
    LS_CHECK(quantized_.data == nullptr || x != quantized_.data)
        << "rows quantized for a product are read twice";
    return {num_rows, x};
  }
  const bool are_all =
      num_rows == quantized_.num_rows || (quantized_.is_gathered && num_rows < quantized_.num_rows);
  LS_CHECK(x == quantized_.data && &weight == quantized_.consumer && are_all)
      << "a product of " << num_rows << " rows comes before that of " << quantized_.num_rows
      << " rows quantized for another one";
  quantized_.is_read = true;
  const E4m3Rows rows =
      E4m3RowsIn(const_cast<void*>(x), quantized_.num_rows, weight.shape().in_features);
  return {num_rows, rows.q, rows.scales};
}

// Rows that ranks gather from each other lie alike on all of them, so that of few rows, whose
// products each rank chooses by its own measurements, none are quantized.
void CudaBackend::AddRmsNorm(const RmsNormArgs& args) {
  const bool is_gathered = args.out_rows > 0;
  const int64_t num_rows = is_gathered ? args.out_rows : args.num_tokens;
  const bool may_quantize = !is_gathered || num_rows > kSkinnyMaxRows;
  const int64_t first = args.first_out_row;
  if (!BeginRows(args.out, num_rows, args.hidden, may_quantize ? args.consumer : nullptr)) {
    RmsNormArgs these = args;
    these.out =
        static_cast<std::byte*>(args.out) + first * args.hidden * DTypeBytes(options_.compute);
    return CudaCheck(LaunchAddRmsNorm(these, options_.compute, stream_), "RMSNorm");
  }
  quantized_.is_gathered = is_gathered;
  const E4m3Rows rows = E4m3RowsIn(args.out, num_rows, args.hidden);
  const E4m3Rows these = {rows.q + first * args.hidden, rows.scales + first};
  CudaCheck(LaunchAddRmsNormFp8(args, options_.compute,
                                these.Bounded(args.consumer->shape().activation_bound), stream_),
            "RMSNorm in e4m3");
}

std::array<RowArray, 2> CudaBackend::RowsToGather(void* out, int64_t hidden) const {
  if (quantized_.data != out || !AreRowsToBeRead()) return Backend::RowsToGather(out, hidden);
  const E4m3Rows rows = E4m3RowsIn(out, quantized_.num_rows, hidden);
  return {{{rows.q, hidden}, {rows.scales, int64_t{sizeof(float)}}}};
}

void CudaBackend::Linear(const LinearWeight& weight, const void* x, int64_t num_tokens, float* y) {
  Multiply(weight, x, num_tokens, y, DType::kF32);
}

void CudaBackend::Multiply(const LinearWeight& weight, const void* x, int64_t num_tokens, void* y,
                           DType y_dtype) {
  if (weights_are_new_.exchange(false)) Synchronize();  // weights are read before all else
  Gemm::Input input = TakeRows(weight, x, num_tokens);
  input.origin = std::exchange(origin_, Gemm::Origin::kOther);
  gemm_->Run(WeightOf(weight), input, y, y_dtype);
}

// Prompts' products go through memory, once to it and once or more from it: in bf16 that is, by the
// bytes, some 6 % of the time of an 8b's 8k tokens, and 8 % where weights are fp8. Of fewer tokens
// (an 8b's gate and up of 256 have 29 MB in f32) they stay in the second-level cache, and nothing
// is gained by the rounding; f16 could overflow.
DType CudaBackend::ProductDType(int64_t num_tokens) const {
  const bool is_rounded =
      options_.compute == DType::kBF16 && !options_.deterministic && num_tokens > kMostPlainTokens;
  return is_rounded ? DType::kBF16 : DType::kF32;
}

void CudaBackend::RoundedLinear(const LinearWeight& weight, const void* x, int64_t num_tokens,
                                void* y) {
  Multiply(weight, x, num_tokens, y, ProductDType(num_tokens));
}

void CudaBackend::SiluMul(const SiluMulArgs& args) {
  origin_ = Gemm::Origin::kSilu;
  if (!BeginRows(args.out, args.num_tokens, args.width, args.consumer)) {
    return CudaCheck(LaunchSiluMul(args, options_.compute, stream_), "SiLU");
  }
  const E4m3Rows rows = E4m3RowsIn(args.out, args.num_tokens, args.width);
  CudaCheck(LaunchSiluMulFp8(args, options_.compute,
                             rows.Bounded(args.consumer->shape().activation_bound), stream_),
            "SiLU in e4m3");
}

void CudaBackend::RopeAndWriteKv(const RopeArgs& args) {
  CudaCheck(LaunchRopeAndWriteKv(args, stream_), "RoPE");
}

AttentionWorkspace CudaBackend::Workspace() const {
  return {
      .data = attention_workspace_,
      .bytes = options_.deterministic ? kFixedAttentionWorkspaceBytes : kAttentionWorkspaceBytes};
}

void CudaBackend::Attention(const AttentionArgs& args) {
  LS_CHECK(AttentionSupports(args.cache->dtype, args.cache->head_dim))
      << "attention over heads of " << args.cache->head_dim;
  ForgetRows(args.out);
  origin_ = Gemm::Origin::kAttention;
  CudaCheck(LaunchAttention(args, options_.compute, Workspace(),
                            chunk_kernels_.EncoderFor(*args.cache), stream_),
            "attention");
}

absl::Status CudaBackend::CheckKvCache(const KvCacheView& cache) const {
  if (AttentionSupports(cache.dtype, cache.head_dim)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a KV cache in ", std::string(DTypeName(cache.dtype)), " of heads of ", cache.head_dim,
      ": on GPUs heads are multiples of 8 up to 128 in bf16 and f16, of 16 in fp8, even up to 256 "
      "in f32"));
}

AttentionMachine CudaBackend::MachineFor(const KvCacheView& cache) const {
  return {.num_multiprocessors = properties_.multiProcessorCount,
          .wgmma = chunk_kernels_.EncoderFor(cache) != nullptr,
          .fixed_splits = options_.deterministic,
          .workspace_bytes = Workspace().bytes};
}

AttentionLayout CudaBackend::LayOutAttention(const AttentionBatch& batch, int num_heads,
                                             const KvCacheView& cache) {
  if (!std::exchange(has_loaded_attention_, true)) {
    CudaCheck(LoadAttention(cache.dtype, options_.compute, cache.head_dim),
              "loading attention's kernels");
  }
  const AttentionForm& form = attention_work_.LayOut(
      batch, {num_heads, cache.num_kv_heads, cache.head_dim}, cache.dtype, MachineFor(cache));
  return {attention_work_.bytes(), form.Packed()};
}

int64_t CudaBackend::ReserveAttentionWork(const AttentionLimits& limits, int num_heads,
                                          const KvCacheView& cache) {
  const int64_t bytes = MostAttentionWork(limits, {num_heads, cache.num_kv_heads, cache.head_dim},
                                          cache.dtype, MachineFor(cache));
  attention_work_.Reserve(bytes);
  return bytes;
}

void CudaBackend::WriteBlockTables(const PlacedBlock* blocks, int64_t count,
                                   int32_t* block_tables) {
  CudaCheck(LaunchWriteBlockTables(blocks, count, block_tables, stream_), "writing block tables");
}

void CudaBackend::GatherRows(const void* in, const int32_t* rows, int64_t num_rows,
                             int64_t row_bytes, void* out) {
  ForgetRows(out);
  CudaCheck(LaunchGatherRows(in, rows, num_rows, row_bytes, out, stream_), "gathering rows");
}

void CudaBackend::Add(float* dst, const void* src, DType src_dtype, int64_t count) {
  CudaCheck(LaunchAdd(dst, src, src_dtype, count, stream_), "adding");
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

}  // namespace lockstep::cuda
