// Products y = x W^T by cuBLASLt, whose algorithm for each shape is chosen by measurement once.
//
// x and W are both bf16, both f16, both f32, or both e4m3 with a scale for each of their rows, by
// which cuBLASLt multiplies where it can (since CUDA 12.9, on compute capability 9.0), else a
// kernel of ours afterwards.
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
#include <span>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace lockstep::cuda {

class Gemm {
 public:
  struct Options {
    DType compute = DType::kBF16;  // of x and W; sums are f32
    bool deterministic = false;
  };
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(cudaStream_t stream, const Options& options);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // e4m3: numbers of in_features, aligned to 16 of them, with a scale to each row.
  struct Weight {
    int64_t out_features = 0;
    int64_t in_features = 0;
    const void* data = nullptr;     // [out_features, in_features]
    const float* scales = nullptr;  // e4m3: [out_features]
  };
  struct Input {
    int64_t num_rows = 0;
    const void* data = nullptr;     // [num_rows, in_features]
    const float* scales = nullptr;  // e4m3: [num_rows]
  };
  // Makes room for weights of that shape: to be called before Run, which allocates nothing.
  absl::Status Prepare(int64_t out_features, int64_t in_features, bool is_fp8 = false);
  // y: f32 [num_rows, out_features]. Measures, and waits for the device, the first time that a
  // shape comes with so many rows.
  void Run(const Weight& w, const Input& x, float* y);

  static constexpr int64_t kFixedRows = 64;

 private:
  struct Product;  // a weight shape: its layouts and algorithms
  struct Call {
    const Weight& w;
    Input x;
    float* y;
  };

  Gemm(cudaStream_t stream, const Options& options);
  absl::Status Start();
  absl::StatusOr<cublasLtMatmulDesc_t> Describe();
  void RunFixed(Product& product, const Call& call);
  void Multiply(Product& product, const cublasLtMatmulAlgo_t& algorithm, const Call& call);
  const cublasLtMatmulAlgo_t& AlgorithmFor(Product& product, const Call& call);
  // Of the algorithms for up to `rows` rows; how many there are.
  int FindAlgorithms(Product& product, uint64_t rows,
                     std::span<cublasLtMatmulHeuristicResult_t> found);
  float Measure(Product& product, const cublasLtMatmulAlgo_t& algorithm, const Call& call);
  bool IsRecording() const;

  const cudaStream_t stream_;
  const Options options_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t plain_ = nullptr;
  cublasLtMatmulDesc_t scaled_ = nullptr;  // by vectors of scales; null where there is no such
  cublasLtMatmulPreference_t preference_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* workspace_ = nullptr;
  void* fixed_x_ = nullptr;   // deterministic: [kFixedRows, the largest in_features]
  float* fixed_y_ = nullptr;  // deterministic: [kFixedRows, the largest out_features]
  int64_t fixed_x_bytes_ = 0;
  int64_t fixed_y_bytes_ = 0;
  // By out_features, in_features and whether they are e4m3.
  std::map<std::tuple<int64_t, int64_t, bool>, std::unique_ptr<Product>> products_;
};

}  // namespace lockstep::cuda
