#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm_fixed.h"
#include "kernels/cuda/gemm_product.h"
#include "kernels/cuda/kernels.h"

namespace lockstep::cuda {
namespace {

constexpr uint32_t kAlignment = 16;  // bytes

cudaDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}
constexpr cudaDataType_t kFp8 = CUDA_R_8F_E4M3;

absl::Status CublasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", cublasLtGetStatusString(status)));
}

void SetColumns(cublasLtMatrixLayout_t layout, uint64_t columns) {
  CublasCheck(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                               sizeof(columns)),
              "matrix layout");
}

// Inputs that have a scale to each row and matrices that have one to each output. False where
// cuBLAS is too old.
bool ScaleByVectors([[maybe_unused]] cublasLtMatmulDesc_t operation) {
#if defined(CUBLAS_VERSION) && CUBLAS_VERSION < 120900
  return false;  // its headers do not know how to say it
#else
  const int32_t by_vector = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  for (const auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
    if (cublasLtMatmulDescSetAttribute(operation, mode, &by_vector, sizeof(by_vector)) !=
        CUBLAS_STATUS_SUCCESS) {
      return false;
    }
  }
  return true;
#endif
}

// reduction_schemes: of split-K.
absl::StatusOr<cublasLtMatmulPreference_t> MakePreference(uint32_t reduction_schemes) {
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(CublasStatus(cublasLtMatmulPreferenceCreate(&preference), "choosing algorithms"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return CublasStatus(
        cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
        "choosing algorithms");
  };
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes));
  // Rows of an input may begin anywhere that 16 bytes allow.
  for (const auto operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_ERROR(set(operand, kAlignment));
  }
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction_schemes));
  return preference;
}

}  // namespace

Gemm::Gemm(const KernelStream& stream, const Options& options)
    : stream_(stream), options_(options) {}

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(const KernelStream& stream,
                                                   const Options& options) {
  std::unique_ptr<Gemm> gemm(new Gemm(stream, options));
  RETURN_IF_ERROR(gemm->Start());
  return gemm;
}

absl::StatusOr<cublasLtMatmulDesc_t> Gemm::Describe() {
  cublasLtMatmulDesc_t operation = nullptr;
  RETURN_IF_ERROR(CublasStatus(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                               "describing a product"));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transposed, sizeof(transposed)),
                   "describing a product"));
  return operation;
}

absl::StatusOr<cublasLtMatmulDesc_t> Gemm::DescribeFp8() {
  ASSIGN_OR_RETURN(const cublasLtMatmulDesc_t operation, Describe());
  const int8_t fast = 1;
  RETURN_IF_ERROR(CublasStatus(cublasLtMatmulDescSetAttribute(
                                   operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)),
                               "describing a product in e4m3"));
  return operation;
}

absl::Status Gemm::Start() {
  RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&handle_), "starting cuBLASLt"));
  ASSIGN_OR_RETURN(plain_, Describe());
  ASSIGN_OR_RETURN(fp8_, DescribeFp8());
  ASSIGN_OR_RETURN(scaled_, DescribeFp8());
  if (!ScaleByVectors(scaled_)) {
    cublasLtMatmulDescDestroy(scaled_);
    scaled_ = nullptr;
  }
  ASSIGN_OR_RETURN(preference_,
                   MakePreference(options_.deterministic ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                         : CUBLASLT_REDUCTION_SCHEME_MASK));
  // Others add parts of a sum in y's own type.
  ASSIGN_OR_RETURN(rounded_preference_, MakePreference(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&workspace_, kWorkspaceBytes), "cuBLASLt's workspace"));
  int device = 0;
  int cache_bytes = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "asking a GPU"));
  RETURN_IF_ERROR(CudaStatus(cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device),
                             "asking a GPU"));
  scratch_bytes_ = 2 * int64_t{cache_bytes};
  RETURN_IF_ERROR(CudaStatus(
      cudaDeviceGetAttribute(&num_multiprocessors_, cudaDevAttrMultiProcessorCount, device),
      "asking a GPU"));
  constexpr size_t kArrivalsBytes = kSkinnyMaxArrivals * sizeof(uint32_t);
  void* arrivals = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&arrivals, kArrivalsBytes), "counts of blocks"));
  arrivals_ = static_cast<uint32_t*>(arrivals);
  RETURN_IF_ERROR(
      CudaStatus(cudaMemsetAsync(arrivals_, 0, kArrivalsBytes, stream_), "counts of blocks"));
  if (options_.deterministic) {
    fixed_ = std::make_unique<Fixed>(*this);
    RETURN_IF_ERROR(fixed_->Start());
  }
  RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&begin_), "an event"));
  return CudaStatus(cudaEventCreate(&end_), "an event");
}

Gemm::~Gemm() {
  products_.clear();
  fixed_.reset();
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  for (void* memory : {workspace_, static_cast<void*>(arrivals_)}) {
    if (memory != nullptr) cudaFree(memory);
  }
  for (cublasLtMatmulPreference_t preference : {preference_, rounded_preference_}) {
    if (preference != nullptr) cublasLtMatmulPreferenceDestroy(preference);
  }
  for (cublasLtMatmulDesc_t operation : {plain_, fp8_, scaled_}) {
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

absl::StatusOr<std::unique_ptr<Gemm::Product>> Gemm::DescribeProduct(int64_t out_features,
                                                                     int64_t in_features,
                                                                     bool is_fp8,
                                                                     DType y_dtype) const {
  auto product = std::make_unique<Product>();
  product->out_features = out_features;
  product->in_features = in_features;
  product->element_bytes = is_fp8 ? 1 : DTypeBytes(options_.compute);
  product->is_fp8 = is_fp8;
  product->y_dtype = y_dtype;
  const auto make = [](cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t rows,
                       int64_t columns) {
    return CublasStatus(cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                                   static_cast<uint64_t>(columns), rows),
                        "describing a matrix");
  };
  const cudaDataType_t type = is_fp8 ? kFp8 : TypeOf(options_.compute);
  RETURN_IF_ERROR(make(&product->w, type, in_features, out_features));
  RETURN_IF_ERROR(make(&product->x, type, in_features, 1));
  RETURN_IF_ERROR(make(&product->y, TypeOf(y_dtype), out_features, 1));
  return product;
}

absl::Status Gemm::Prepare(int64_t out_features, int64_t in_features, bool is_fp8) {
  std::unique_ptr<Product>& product = products_[{out_features, in_features, is_fp8, DType::kF32}];
  if (product != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(product, DescribeProduct(out_features, in_features, is_fp8, DType::kF32));
  return fixed_ != nullptr ? fixed_->Prepare(*product) : absl::OkStatus();
}

// Which results will be rounded, too, nobody says beforehand.
Gemm::Product& Gemm::ProductOf(const Weight& w, DType y_dtype) {
  const bool is_fp8 = w.scales != nullptr;
  const auto found = products_.find({w.out_features, w.in_features, is_fp8, y_dtype});
  if (found != products_.end()) return *found->second;
  LS_CHECK(products_.contains({w.out_features, w.in_features, is_fp8, DType::kF32}))
      << w.out_features << " x " << w.in_features;
  auto product = DescribeProduct(w.out_features, w.in_features, is_fp8, y_dtype);
  LS_CHECK(product.ok()) << product.status();
  return *(products_[{w.out_features, w.in_features, is_fp8, y_dtype}] = *std::move(product));
}

void Gemm::Run(const Weight& w, const Input& x, void* y, DType y_dtype) {
  if (x.num_rows == 0) return;
  LS_CHECK(y_dtype == DType::kF32 || (y_dtype == DType::kBF16 && !options_.deterministic))
      << DTypeName(y_dtype);
  Product& product = ProductOf(w, y_dtype);
  LS_CHECK(product.is_fp8 || x.scales == nullptr);
  const bool is_quantized = product.is_fp8 == (x.scales != nullptr);
  Call call = is_quantized ? Call{w, x, y} : QuantizedCall(w, x, y);
  if (fixed_ == nullptr) return MultiplyBest(product, call);
  if (call.unquantized != nullptr) Quantize(call);
  call.unquantized = nullptr;
  fixed_->Run(product, call);
}

bool Gemm::WantsQuantized(const Weight& w, int64_t num_rows) const {
  if (w.scales == nullptr || num_rows == 0) return false;
  if (options_.deterministic || num_rows > kSkinnyMaxRows) return true;
  const auto found = products_.find({w.out_features, w.in_features, true, DType::kF32});
  if (found == products_.end()) return false;
  const auto known = found->second->known.find(num_rows);
  return known != found->second->known.end() && !known->second.skinny_variant.has_value();
}

Gemm::Call Gemm::QuantizedCall(const Weight& w, const Input& x, void* y) {
  LS_CHECK(E4m3RowsBytes(x.num_rows, w.in_features) <= quantized_bytes())
      << quantized_bytes() << " bytes for " << x.num_rows << " rows of " << w.in_features
      << " numbers to be quantized";
  const E4m3Rows rows = E4m3RowsIn(quantized_x_.back().data(), x.num_rows, w.in_features);
  return {w, {x.num_rows, rows.q, rows.scales, x.origin}, y, x.data};
}

void Gemm::Quantize(const Call& call) {
  const E4m3Rows rows = {static_cast<uint8_t*>(const_cast<void*>(call.x.data)),
                         const_cast<float*>(call.x.scales)};
  CudaCheck(LaunchQuantizeFp8(call.unquantized, options_.compute, call.x.num_rows,
                              call.w.in_features, rows.Bounded(call.w.activation_bound), stream_),
            "quantizing a product's input");
}

void Gemm::MultiplyBest(Product& product, const Call& call) {
  const auto known = product.known.find(call.x.num_rows);
  if (known != product.known.end()) return Multiply(product, known->second, call);
  if (IsRecording()) return MultiplyAsOthers(product, call);
  Multiply(product, Learn(product, call), call);
}

// A step runs before it is recorded, so that its sizes are known. Were one not, nothing can be
// asked of cuBLASLt now (with CUDA 13.3 the heuristic fails while a stream is captured): the
// algorithm of the nearest size that this one can use, larger ones first.
void Gemm::MultiplyAsOthers(Product& product, const Call& call) {
  const auto nearest = product.known.lower_bound(call.x.num_rows);
  const auto runs = [&](const auto& known) {
    return TryMultiply(product, known.second, call) == CUBLAS_STATUS_SUCCESS;
  };
  if (std::any_of(nearest, product.known.end(), runs)) return;
  const bool has_run = std::any_of(std::make_reverse_iterator(nearest), product.known.rend(), runs);
  LS_CHECK(has_run) << "no algorithm is known for " << product.out_features << " x "
                    << product.in_features << " with " << call.x.num_rows
                    << " rows while a step is recorded";
}

void Gemm::Multiply(Product& product, const Choice& choice, const Call& call) {
  CublasCheck(TryMultiply(product, choice, call), "a product");
}

bool Gemm::TakesSkinny(const Product& product, const Call& call) const {
  const bool has_plain_x = call.x.scales == nullptr || call.unquantized != nullptr;
  return has_plain_x && product.y_dtype == DType::kF32 && SkinnyGemmSupports(SkinnyOf(call));
}

// Of a row of W, beyond what a product's blocks have room for, while x is made. Beside attention
// few of them find room. Elsewhere 264 blocks of 40 KiB are three microseconds of an H100's memory,
// and a norm or SiLU takes longer, with the launch and with what it waits for itself; W in e4m3 and
// the MLP's second product have rows that are worth it. (Counted, not measured.)
int64_t Gemm::PrefetchedBytes(const Weight& w, Origin origin) {
  if (origin == Origin::kAttention) return 4096;
  if (w.scales != nullptr) return 2048;
  return origin == Origin::kSilu ? 1024 : 0;
}

SkinnyProduct Gemm::SkinnyOf(const Call& call) const {
  return {.num_rows = call.x.num_rows,
          .out_features = call.w.out_features,
          .in_features = call.w.in_features,
          .dtype = options_.compute,
          .x = call.unquantized != nullptr ? call.unquantized : call.x.data,
          .w = call.w.data,
          .scales = call.w.scales,
          .y = static_cast<float*>(call.y),
          .prefetched_bytes = PrefetchedBytes(call.w, call.x.origin),
          .num_multiprocessors = num_multiprocessors_,
          .partial_sums = static_cast<float4*>(workspace_),
          .partial_sums_bytes = static_cast<int64_t>(kWorkspaceBytes),
          .arrivals = arrivals_};
}

cublasStatus_t Gemm::TrySkinny(int variant, const Product& product, const Call& call) {
  if (!TakesSkinny(product, call)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (LaunchSkinnyGemm(variant, SkinnyOf(call), stream_) == cudaSuccess) {
    return CUBLAS_STATUS_SUCCESS;
  }
  cudaGetLastError();  // it may need more shared memory than there is
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t Gemm::TryMultiply(Product& product, const Choice& choice, const Call& call) {
  if (choice.skinny_variant.has_value()) return TrySkinny(*choice.skinny_variant, product, call);
  if (call.unquantized != nullptr) Quantize(call);
  const cublasLtMatmulDesc_t operation = SetUp(product, choice.is_scaled, call);
  const float one = 1.0f;
  const float zero = 0.0f;
  const cublasStatus_t status = cublasLtMatmul(
      handle_, operation, &one, call.w.data, product.w, call.x.data, product.x, &zero, call.y,
      product.y, call.y, product.y, &choice.algorithm, workspace_, kWorkspaceBytes, stream_);
  if (status != CUBLAS_STATUS_SUCCESS) {
    cudaGetLastError();  // else our next launch would be taken for what failed
    return status;
  }
  if (product.is_fp8 && !choice.is_scaled) {
    const ProductRows rows = {call.y, product.y_dtype, call.x.num_rows, product.out_features};
    CudaCheck(LaunchScaleRowsAndColumns(rows, call.x.scales, call.w.scales, stream_),
              "scales of a product");
  }
  return status;
}

// Scales are set before algorithms are looked for, too: cuBLASLt finds none for scales by vectors
// without a pointer to them.
cublasLtMatmulDesc_t Gemm::SetUp(Product& product, bool is_scaled, const Call& call) {
  SetColumns(product.x, static_cast<uint64_t>(call.x.num_rows));
  SetColumns(product.y, static_cast<uint64_t>(call.x.num_rows));
  if (!is_scaled) return product.is_fp8 ? fp8_ : plain_;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const float* const& scales) {
    CublasCheck(cublasLtMatmulDescSetAttribute(scaled_, attribute, &scales, sizeof(scales)),
                "scales of a product");
  };
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.w.scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.x.scales);
  return scaled_;
}

bool Gemm::IsRecording() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CudaCheck(cudaStreamIsCapturing(stream_, &status), "asking a stream");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace lockstep::cuda
