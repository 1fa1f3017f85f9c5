#include "kernels/cuda/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

// What NVIDIA advises for Hopper (cuBLAS documentation, "cublasSetWorkspace").
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8;  // algorithms that are measured
constexpr int kMeasurements = 3;

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

absl::Status CublasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", cublasLtGetStatusString(status)));
}

void CublasCheck(cublasStatus_t status, const char* what) {
  LS_CHECK(status == CUBLAS_STATUS_SUCCESS) << what << ": " << cublasLtGetStatusString(status);
}

void SetColumns(cublasLtMatrixLayout_t layout, uint64_t columns) {
  CublasCheck(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns,
                                               sizeof(columns)),
              "matrix layout");
}

}  // namespace

// cuBLASLt's matrices are column-major: ours, read so, are transposed. y^T [out, rows] =
// (W^T)^T x^T, with W^T [in, out] and x^T [in, rows] as they lie.
struct Gemm::Product {
  int64_t out_features = 0;
  int64_t in_features = 0;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  std::array<bool, 64> is_known = {};  // by the logarithm of the number of rows
  std::array<cublasLtMatmulAlgo_t, 64> algorithms = {};

  ~Product() {
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
};

Gemm::Gemm(cudaStream_t stream, const Options& options) : stream_(stream), options_(options) {}

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Create(cudaStream_t stream, const Options& options) {
  std::unique_ptr<Gemm> gemm(new Gemm(stream, options));
  RETURN_IF_ERROR(gemm->Start());
  return gemm;
}

absl::Status Gemm::Start() {
  RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&handle_), "starting cuBLASLt"));
  RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "describing a product"));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transposed, sizeof(transposed)),
                   "describing a product"));
  RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulPreferenceCreate(&preference_), "choosing algorithms"));
  RETURN_IF_ERROR(CublasStatus(
      cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                           &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
      "choosing algorithms"));
  if (options_.deterministic) {
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    RETURN_IF_ERROR(CublasStatus(
        cublasLtMatmulPreferenceSetAttribute(
            preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof(none)),
        "choosing algorithms without split-K"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&workspace_, kWorkspaceBytes), "cuBLASLt's workspace"));
  RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&begin_), "an event"));
  return CudaStatus(cudaEventCreate(&end_), "an event");
}

Gemm::~Gemm() {
  products_.clear();
  if (begin_ != nullptr) cudaEventDestroy(begin_);
  if (end_ != nullptr) cudaEventDestroy(end_);
  for (void* memory : {workspace_, fixed_x_, static_cast<void*>(fixed_y_)}) {
    if (memory != nullptr) cudaFree(memory);
  }
  if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
  if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

namespace {

// Grown while weights are allocated.
absl::Status Grow(int64_t bytes, int64_t& held, void** memory) {
  if (bytes <= held) return absl::OkStatus();
  if (*memory != nullptr) cudaFree(*memory);
  *memory = nullptr;
  held = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(memory, static_cast<size_t>(bytes)), "rows of a product"));
  // Rows that fill up a tile are multiplied, too.
  RETURN_IF_ERROR(
      CudaStatus(cudaMemset(*memory, 0, static_cast<size_t>(bytes)), "rows of a product"));
  held = bytes;
  return absl::OkStatus();
}

}  // namespace

absl::Status Gemm::Prepare(int64_t out_features, int64_t in_features) {
  std::unique_ptr<Product>& product = products_[{out_features, in_features}];
  if (product != nullptr) return absl::OkStatus();
  product = std::make_unique<Product>();
  product->out_features = out_features;
  product->in_features = in_features;
  const auto make = [](cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t rows,
                       int64_t columns) {
    return CublasStatus(cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                                   static_cast<uint64_t>(columns), rows),
                        "describing a matrix");
  };
  const cudaDataType_t type = TypeOf(options_.compute);
  RETURN_IF_ERROR(make(&product->w, type, in_features, out_features));
  RETURN_IF_ERROR(make(&product->x, type, in_features, 1));
  RETURN_IF_ERROR(make(&product->y, CUDA_R_32F, out_features, 1));
  if (!options_.deterministic) return absl::OkStatus();
  RETURN_IF_ERROR(
      Grow(kFixedRows * in_features * DTypeBytes(options_.compute), fixed_x_bytes_, &fixed_x_));
  void* y = fixed_y_;
  const absl::Status grown =
      Grow(kFixedRows * out_features * int64_t{sizeof(float)}, fixed_y_bytes_, &y);
  fixed_y_ = static_cast<float*>(y);
  return grown;
}

void Gemm::Run(const void* w, int64_t out_features, int64_t in_features, const void* x,
               int64_t num_rows, float* y) {
  if (num_rows == 0) return;
  const auto found = products_.find({out_features, in_features});
  LS_CHECK(found != products_.end()) << out_features << " x " << in_features;
  Product& product = *found->second;
  const Call call{w, x, num_rows, y};
  if (options_.deterministic) return RunFixed(product, call);
  Multiply(product, AlgorithmFor(product, call), call);
}

void Gemm::RunFixed(Product& product, const Call& call) {
  const int64_t x_row_bytes = product.in_features * DTypeBytes(options_.compute);
  const auto copy = [&](void* to, const void* from, int64_t bytes) {
    CudaCheck(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_),
        "rows of a product");
  };
  for (int64_t row = 0; row < call.num_rows; row += kFixedRows) {
    const int64_t count = std::min(kFixedRows, call.num_rows - row);
    Call tile{call.w, static_cast<const std::byte*>(call.x) + row * x_row_bytes, kFixedRows,
              call.y + row * product.out_features};
    float* const y = tile.y;
    if (count < kFixedRows) {
      copy(fixed_x_, tile.x, count * x_row_bytes);
      tile.x = fixed_x_;
      tile.y = fixed_y_;
    }
    Multiply(product, AlgorithmFor(product, tile), tile);
    if (count < kFixedRows) {
      copy(y, fixed_y_, count * product.out_features * int64_t{sizeof(float)});
    }
  }
}

void Gemm::Multiply(Product& product, const cublasLtMatmulAlgo_t& algorithm, const Call& call) {
  SetColumns(product.x, static_cast<uint64_t>(call.num_rows));
  SetColumns(product.y, static_cast<uint64_t>(call.num_rows));
  const float one = 1.0f;
  const float zero = 0.0f;
  CublasCheck(cublasLtMatmul(handle_, operation_, &one, call.w, product.w, call.x, product.x, &zero,
                             call.y, product.y, call.y, product.y, &algorithm, workspace_,
                             kWorkspaceBytes, stream_),
              "a product");
}

bool Gemm::IsRecording() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CudaCheck(cudaStreamIsCapturing(stream_, &status), "asking a stream");
  return status != cudaStreamCaptureStatusNone;
}

// Of 1, 2, 3-4, 5-8 ... rows each: the best by measurement; while a step is recorded, or where rows
// are always as many, the one that cuBLASLt expects to be best.
const cublasLtMatmulAlgo_t& Gemm::AlgorithmFor(Product& product, const Call& call) {
  const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(call.num_rows) - 1));
  cublasLtMatmulAlgo_t& chosen = product.algorithms[bucket];
  if (product.is_known[bucket]) return chosen;
  // For the most rows that will use it: its workspace may grow with them.
  SetColumns(product.x, uint64_t{1} << bucket);
  SetColumns(product.y, uint64_t{1} << bucket);
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found = {};
  int num_found = 0;
  CublasCheck(
      cublasLtMatmulAlgoGetHeuristic(handle_, operation_, product.w, product.x, product.y,
                                     product.y, preference_, kCandidates, found.data(), &num_found),
      "finding an algorithm");
  LS_CHECK(num_found > 0) << "cuBLASLt has no algorithm for " << product.out_features << " x "
                          << product.in_features << " with " << call.num_rows << " rows";
  chosen = found[0].algo;
  if (IsRecording()) return chosen;
  product.is_known[bucket] = true;
  if (options_.deterministic) return chosen;
  float best = Measure(product, chosen, call);
  for (int i = 1; i < num_found; ++i) {
    const float seconds = Measure(product, found[static_cast<size_t>(i)].algo, call);
    if (seconds >= best) continue;
    best = seconds;
    chosen = found[static_cast<size_t>(i)].algo;
  }
  return chosen;
}

// Milliseconds of the fastest of a few, after one that loads the code.
float Gemm::Measure(Product& product, const cublasLtMatmulAlgo_t& algorithm, const Call& call) {
  Multiply(product, algorithm, call);
  float best = 0.0f;
  for (int i = 0; i < kMeasurements; ++i) {
    float milliseconds = 0.0f;
    CudaCheck(cudaEventRecord(begin_, stream_), "measuring a product");
    Multiply(product, algorithm, call);
    CudaCheck(cudaEventRecord(end_, stream_), "measuring a product");
    CudaCheck(cudaEventSynchronize(end_), "measuring a product");
    CudaCheck(cudaEventElapsedTime(&milliseconds, begin_, end_), "measuring a product");
    best = i == 0 ? milliseconds : std::min(best, milliseconds);
  }
  return best;
}

}  // namespace lockstep::cuda
