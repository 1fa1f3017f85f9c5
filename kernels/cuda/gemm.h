// Products y = x W^T by cuBLASLt, or of up to 64 rows by kernels of our own (skinny_gemm.h). What
// does it for each shape is chosen by measurement once (gemm_choice.cc): for 1, 2, 4 and each
// multiple of 8 up to 256 rows, and for each doubling above. Other numbers of rows take that of the
// next of those if cuBLASLt says that they can, else the one that it expects to be best. While an
// 8b model warms up with powers of two up to 8,192 rows, up to 2,300 algorithms of its five shapes
// run four to six times each: by their bytes and arithmetic two or three seconds on an H100, which
// nobody has measured yet.
//
// W is of the dtype of x, bf16, f16 or f32, or e4m3 with a scale for each of its rows. By e4m3
// cuBLASLt multiplies x in e4m3, quantized row by row: here, unless whoever wrote x has done so
// (WantsQuantized). It multiplies by the scales where it can (since CUDA 12.9, on compute
// capability 9.0), else a kernel of ours does so afterwards. Sums of e4m3 are "fast" ones,
// which stay in the tensor cores with some 14 bits instead of going to f32 registers every few
// steps of k: by DeepSeek-V3's report (section 3.3.2) up to 2 % of a sum of 4,096 terms, beside
// what rounding both factors to e4m3 costs, a few percent, too; vLLM and TensorRT-LLM serve with
// them. Our own kernels take x as it is, and add up in f32.
//
// With `deterministic` a row's result depends on that row alone (gemm_fixed.h): all algorithms that
// multiply by weights of one shape have been seen to give the same bits.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/notice.h"
#include "kernels/cuda/kernel_stream.h"
#include "kernels/cuda/skinny_gemm.h"
#include "kernels/device_buffer.h"
#include "kernels/dtype.h"
#include "kernels/quantization.h"

namespace lockstep::cuda {

class Gemm {
 public:
  struct Options {
    DType compute = DType::kBF16;  // of x and W; sums are f32
    bool deterministic = false;
    Notice notice = nullptr;  // AcceleratorOptions
  };
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<Gemm>> Create(const KernelStream& stream,
                                                      const Options& options);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // e4m3: numbers of in_features, aligned to 16 of them, with a scale to each row.
  struct Weight {
    int64_t out_features = 0;
    int64_t in_features = 0;
    const void* data = nullptr;                   // [out_features, in_features]
    const float* scales = nullptr;                // e4m3: [out_features]
    float activation_bound = kNoActivationBound;  // LinearShape's
  };
  // Of Options::compute, or, with scales, as e4m3 weights are multiplied by: in e4m3 itself.
  enum class Origin { kOther, kAttention, kSilu };
  struct Input {
    int64_t num_rows = 0;
    const void* data = nullptr;     // [num_rows, in_features]
    const float* scales = nullptr;  // e4m3: [num_rows]
    Origin origin = Origin::kOther;
  };
  // Makes room for weights of that shape: to be called before Run.
  absl::Status Prepare(int64_t out_features, int64_t in_features, bool is_fp8 = false);
  // Memory for rows, as E4m3RowsBytes, that Run quantizes itself: there must be enough.
  void QuantizeIn(DeviceBuffer memory) { quantized_x_.push_back(std::move(memory)); }
  int64_t quantized_bytes() const { return quantized_x_.empty() ? 0 : quantized_x_.back().bytes(); }
  // Whether x of so many rows would be quantized before it is multiplied, as far as is known by
  // now: the product takes it quantized then. Of up to kSkinnyMaxRows that have not come yet it
  // wants x as it is, to find out what multiplies them best.
  bool WantsQuantized(const Weight& w, int64_t num_rows) const;
  // y: [num_rows, out_features] of y_dtype, f32 or, but not with `deterministic`, bf16: f32
  // sums rounded, by cuBLASLt alone (and once more where scales come after). May measure, and wait
  // for the stream, the first time that a shape comes with so many rows; never while the stream is
  // captured.
  void Run(const Weight& w, const Input& x, void* y, DType y_dtype = DType::kF32);

 private:
  struct Product;  // a weight shape and y's dtype: layouts and algorithms (gemm_product.h)
  struct Choice;   // an algorithm
  struct Call;     // a product's operands
  struct Timed;    // a choice and how long it took
  class Fixed;     // how products with `deterministic` are made (gemm_fixed.h)

  Gemm(const KernelStream& stream, const Options& options);
  absl::Status Start();
  absl::StatusOr<cublasLtMatmulDesc_t> Describe();
  absl::StatusOr<cublasLtMatmulDesc_t> DescribeFp8();
  absl::StatusOr<std::unique_ptr<Product>> DescribeProduct(int64_t out_features,
                                                           int64_t in_features, bool is_fp8,
                                                           DType y_dtype) const;
  Product& ProductOf(const Weight& w, DType y_dtype);

  void MultiplyBest(Product& product, const Call& call);
  void MultiplyAsOthers(Product& product, const Call& call);
  void Multiply(Product& product, const Choice& choice, const Call& call);
  cublasStatus_t TryMultiply(Product& product, const Choice& choice, const Call& call);
  cublasStatus_t TrySkinny(int variant, const Product& product, const Call& call);
  bool TakesSkinny(const Product& product, const Call& call) const;
  static int64_t PrefetchedBytes(const Weight& w, Origin origin);
  SkinnyProduct SkinnyOf(const Call& call) const;
  Call QuantizedCall(const Weight& w, const Input& x, void* y);
  void Quantize(const Call& call);
  // What the layouts and the operation, which is returned, say of a call.
  cublasLtMatmulDesc_t SetUp(Product& product, bool is_scaled, const Call& call);

  class Scratch;
  const Choice& Learn(Product& product, const Call& call);
  void LearnSmaller(Product& product, const Call& call);
  // num_measured: 1: the first that runs.
  Choice Choose(Product& product, const Call& call, int num_measured);
  std::optional<Timed> BestOf(Product& product, bool is_scaled, const Call& call, int num_measured);
  void TakeFasterSkinny(Product& product, const Call& call, std::optional<Timed>& best);
  std::vector<cublasLtMatmulAlgo_t> FindAlgorithms(Product& product, bool is_scaled,
                                                   const Call& call);
  bool Takes(Product& product, const Choice& choice, const Call& call);
  std::optional<float> Measure(Product& product, const Choice& choice, const Call& call);
  void TellWhoScales(const Product& product, int64_t num_rows);
  bool IsRecording() const;

  const KernelStream stream_;
  const Options options_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t plain_ = nullptr;
  cublasLtMatmulDesc_t fp8_ = nullptr;     // of e4m3
  cublasLtMatmulDesc_t scaled_ = nullptr;  // and by vectors of scales; null where there is no such
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulPreference_t rounded_preference_ = nullptr;  // of y that is rounded
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* workspace_ = nullptr;     // cuBLASLt's, or of sums that our blocks share
  uint32_t* arrivals_ = nullptr;  // SkinnyProduct's
  int num_multiprocessors_ = 0;
  int64_t scratch_bytes_ = 0;  // twice the cache
  void* scratch_ = nullptr;    // while algorithms are measured, if there is memory
  bool has_told_who_scales_ = false;
  // e4m3 [num_rows, in_features], scales [num_rows], in the last one; recorded steps may use those
  // before.
  std::vector<DeviceBuffer> quantized_x_;
  std::unique_ptr<Fixed> fixed_;  // deterministic
  // By out_features, in_features, whether they are e4m3, and y's dtype.
  std::map<std::tuple<int64_t, int64_t, bool, DType>, std::unique_ptr<Product>> products_;
};

}  // namespace lockstep::cuda
