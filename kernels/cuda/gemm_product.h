// What gemm.cc and gemm_choice.cc share: a weight shape's layouts and algorithms, for one dtype of
// y. For them alone.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>

#include "kernels/base/check.h"
#include "kernels/cuda/gemm.h"

namespace lockstep::cuda {

// What NVIDIA advises for Hopper (cuBLAS documentation, "cublasSetWorkspace").
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

inline void CublasCheck(cublasStatus_t status, const char* what) {
  LS_CHECK(status == CUBLAS_STATUS_SUCCESS) << what << ": " << cublasLtGetStatusString(status);
}

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

  ~Product() {
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
};

}  // namespace lockstep::cuda
