// Products y = x W^T by cuBLASLt, whose algorithm for each shape is chosen by measurement once.
//
// With `deterministic`, rows are multiplied in tiles of kFixedRows, the last one filled up, by one
// algorithm without split-K for each weight shape: a row's result then depends on that row alone.
// It costs a decode step of few tokens the arithmetic of kFixedRows.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace lockstep::cuda {

class Gemm {
 public:
  struct Options {
    DType compute = DType::kBF16;  // of x and W: kBF16 or kF32; sums are f32
    bool deterministic = false;
  };
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(cudaStream_t stream, const Options& options);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // Makes room for weights of that shape: to be called before Run, which allocates nothing.
  absl::Status Prepare(int64_t out_features, int64_t in_features);
  // w [out_features, in_features], x [num_rows, in_features], y f32 [num_rows, out_features].
  // Measures, and waits for the device, the first time that a shape comes with so many rows.
  void Run(const void* w, int64_t out_features, int64_t in_features, const void* x,
           int64_t num_rows, float* y);

  static constexpr int64_t kFixedRows = 64;

 private:
  struct Product;  // a weight shape: its layouts and algorithms
  struct Call {
    const void* w;
    const void* x;
    int64_t num_rows;
    float* y;
  };

  Gemm(cudaStream_t stream, const Options& options);
  absl::Status Start();
  void RunFixed(Product& product, const Call& call);
  void Multiply(Product& product, const cublasLtMatmulAlgo_t& algorithm, const Call& call);
  const cublasLtMatmulAlgo_t& AlgorithmFor(Product& product, const Call& call);
  float Measure(Product& product, const cublasLtMatmulAlgo_t& algorithm, const Call& call);
  bool IsRecording() const;

  const cudaStream_t stream_;
  const Options options_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* workspace_ = nullptr;
  void* fixed_x_ = nullptr;   // deterministic: [kFixedRows, the largest in_features]
  float* fixed_y_ = nullptr;  // deterministic: [kFixedRows, the largest out_features]
  int64_t fixed_x_bytes_ = 0;
  int64_t fixed_y_bytes_ = 0;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Product>> products_;
};

}  // namespace lockstep::cuda
