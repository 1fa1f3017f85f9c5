// What gemm.cc, gemm_choice.cc and gemm_fixed.cc share: a weight shape's layouts and algorithms,
// for one dtype of y. For them alone.
#pragma once

#include <cublasLt.h>

#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "kernels/base/check.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/workspaces.h"

namespace lockstep::cuda {

constexpr size_t kWorkspaceBytes = kProductWorkspaceBytes;

inline void CublasCheck(cublasStatus_t status, const char* what) {
  LS_CHECK(status == CUBLAS_STATUS_SUCCESS) << what << ": " << cublasLtGetStatusString(status);
}

// Algorithms that cuBLASLt is asked for and that are measured: of few rows, which take little time
// and whose order by the heuristic is least to be relied on, of more, and of sizes between powers
// of two. Of long prompts' products in e4m3, which take most of their time, all again: of an 8b's
// five shapes with up to 8,192 rows half a second more, by their arithmetic, while it warms up.
constexpr int kMostCandidates = 32;
constexpr int kCandidates = 8;
constexpr int kFewCandidates = 2;
constexpr int64_t kMostExactRows = 256;
constexpr int64_t kLeastLongRows = 2048;

// Rows that share an algorithm. Decodes are padded to 1, 2, 4 and multiples of 8, of which those
// up to kMostExactRows have their own; tiles of a product, 128 or 256 rows, are no wider than
// that, so that for more rows doublings do.
inline int64_t SharedRows(int64_t rows) {
  if (rows > 4 && rows <= kMostExactRows) return (rows + 7) / 8 * 8;
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
}

struct Gemm::Choice {
  cublasLtMatmulAlgo_t algorithm = {};
  bool is_scaled = false;  // e4m3: cuBLASLt multiplies by the scales
  // A kernel of ours (skinny_gemm.h) does it all instead.
  std::optional<int> skinny_variant = std::nullopt;
};
struct Gemm::Call {
  const Weight& w;
  Input x;  // what cuBLASLt multiplies W by
  void* y;
  // Of which x is first to be made, where W is e4m3: rows of Options::compute.
  const void* unquantized = nullptr;
};
// Milliseconds are 0 where nothing was measured.
struct Gemm::Timed {
  Choice choice;
  float milliseconds = 0.0f;
};

// cuBLASLt's matrices are column-major: ours, read so, are transposed. y^T [out, rows] =
// (W^T)^T x^T, with W^T [in, out] and x^T [in, rows] as they lie.
struct Gemm::Product {
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t element_bytes = 0;  // of x and W
  bool is_fp8 = false;
  DType y_dtype = DType::kF32;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  // By the number of rows. Nothing is ever forgotten: recorded steps run with what was known, and
  // none can be looked for while one is recorded.
  std::map<int64_t, Choice> known;   // those that have come: the algorithm takes just so many
  std::map<int64_t, Choice> shared;  // found for one of those that share it (SharedRows)

  // Deterministic (gemm_fixed.h): of kFixedRows, whose bits all that is known has; whether made-up
  // rows have told so, which they do not with weights that are zeros; and numbers of rows that
  // nothing has them of.
  std::optional<Choice> reference;
  bool is_reference_told = false;
  std::set<int64_t> refused;

  ~Product() {
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
};

// The scratch memory is the stream's, and goes when it has come so far: cudaFree would wait for all
// of the device's streams, one of which may wait for a peer that waits for us.
class Gemm::Scratch {
 public:
  Scratch(Gemm& gemm, int64_t bytes) : gemm_(gemm) {
    if (cudaMallocAsync(&gemm_.scratch_, static_cast<size_t>(bytes), gemm_.stream_) ==
        cudaSuccess) {
      return;
    }
    cudaGetLastError();  // the cache is not emptied then
    gemm_.scratch_ = nullptr;
  }
  ~Scratch() {
    if (gemm_.scratch_ == nullptr) return;
    CudaCheck(cudaFreeAsync(gemm_.scratch_, gemm_.stream_), "memory to measure with");
    gemm_.scratch_ = nullptr;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  Gemm& gemm_;
};

}  // namespace lockstep::cuda
