#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

#include "tests/support/cuda_emulation/runtime/cublas_algorithms.h"
#include "tests/support/cuda_emulation/runtime/cublas_attributes.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/matrix_product.h"

struct cublasLtContext {
  bool alive = true;
};

namespace lockstep::cuda_emulation {

namespace {

Matrix ToMatrix(const cublasLtMatrixLayoutOpaque_t& layout, bool transposed) {
  const Attributes& attributes = layout.attributes;
  Matrix matrix;
  matrix.type = static_cast<cudaDataType>(attributes.As<uint32_t>(CUBLASLT_MATRIX_LAYOUT_TYPE));
  matrix.rows = attributes.As<int64_t>(CUBLASLT_MATRIX_LAYOUT_ROWS);
  matrix.columns = attributes.As<int64_t>(CUBLASLT_MATRIX_LAYOUT_COLS);
  matrix.ld = attributes.As<int64_t>(CUBLASLT_MATRIX_LAYOUT_LD);
  matrix.batch_count = attributes.As<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
  matrix.batch_stride = attributes.As<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
  matrix.transposed = transposed;
  return matrix;
}

bool WellFormed(const Matrix& matrix, int batch_count) {
  return matrix.rows > 0 && matrix.columns > 0 && matrix.ld >= matrix.rows &&
         matrix.batch_count == batch_count && batch_count >= 1;
}

cublasStatus_t CheckTypes(const Product& product) {
  const cudaDataType a = product.a.type;
  const cudaDataType d = product.d.type;
  if (a != product.b.type || BytesPerElement(a) == 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  // cuBLAS library reference, cublasLtMatmul(), the table of types for CUBLAS_COMPUTE_32F.
  const bool fits =
      d == CUDA_R_32F || (a == CUDA_R_8F_E4M3 ? d == CUDA_R_16BF || d == CUDA_R_16F : d == a);
  if (d != product.c.type || !fits) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a != CUDA_R_8F_E4M3) return CUBLAS_STATUS_SUCCESS;
  // cuBLAS library reference, cublasLtMatmul(), "To use FP8 kernels"; of B's columns PyTorch's
  // _scaled_mm (ATen/native/cuda/Blas.cpp) asks for no multiple.
  const bool multiples_of_16 = product.a.rows % 16 == 0 && product.a.columns % 16 == 0 &&
                               product.b.rows % 16 == 0 && product.a.ld % 16 == 0 &&
                               product.b.ld % 16 == 0;
  return product.a.transposed && !product.b.transposed && multiples_of_16
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t CheckDesc(const Attributes& desc) {
  const auto compute = desc.As<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE);
  const bool f32 = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                   compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto transposed = [&](int attribute) { return desc.As<int32_t>(attribute) <= CUBLAS_OP_T; };
  return f32 && desc.As<int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE) == CUDA_R_32F &&
                 desc.As<int32_t>(CUBLASLT_MATMUL_DESC_POINTER_MODE) ==
                     CUBLASLT_POINTER_MODE_HOST &&
                 desc.As<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_DEFAULT &&
                 transposed(CUBLASLT_MATMUL_DESC_TRANSA) && transposed(CUBLASLT_MATMUL_DESC_TRANSB)
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Shapes and types, no data.
cublasStatus_t Describe(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                        cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                        cublasLtMatrixLayout_t d, Product* product) {
  if (desc == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Attributes& attributes = desc->attributes;
  if (const cublasStatus_t status = CheckDesc(attributes); status != CUBLAS_STATUS_SUCCESS) {
    return status;
  }
  for (const cublasLtMatrixLayout_t layout : {a, b, c, d}) {
    const auto order = layout->attributes.As<int32_t>(CUBLASLT_MATRIX_LAYOUT_ORDER);
    if (order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  product->a = ToMatrix(*a, attributes.As<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T);
  product->b = ToMatrix(*b, attributes.As<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T);
  product->c = ToMatrix(*c, false);
  product->d = ToMatrix(*d, false);
  for (const Matrix& matrix : {product->a, product->b, product->c, product->d}) {
    if (!WellFormed(matrix, product->d.batch_count)) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool fits = product->a.op_columns() == product->b.op_rows() &&
                    product->d.rows == product->rows() &&
                    product->d.columns == product->columns() &&
                    product->c.rows == product->d.rows && product->c.columns == product->d.columns;
  product->a_scale = attributes.As<const float*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  product->b_scale = attributes.As<const float*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  const auto is_vector = [&](int attribute) {
    return attributes.As<int32_t>(attribute) == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  };
  product->scales_are_vectors = is_vector(CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
  if ((is_vector(CUBLASLT_MATMUL_DESC_A_SCALE_MODE) && product->a_scale == nullptr) ||
      (is_vector(CUBLASLT_MATMUL_DESC_B_SCALE_MODE) && product->b_scale == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (product->scales_are_vectors != is_vector(CUBLASLT_MATMUL_DESC_B_SCALE_MODE) ||
      (product->scales_are_vectors &&
       (product->a.type != CUDA_R_8F_E4M3 || !TheEngine().device.has_fp8_scale_vectors))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  product->is_fast = attributes.As<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM) != 0;
  if (product->is_fast && product->a.type != CUDA_R_8F_E4M3) return CUBLAS_STATUS_NOT_SUPPORTED;
  return fits ? CheckTypes(*product) : CUBLAS_STATUS_INVALID_VALUE;
}

// With CUDA 13.3 the heuristic fails, as it wants to know of green contexts; whether the check does
// is not known.
bool IsThisThreadCapturing() {
  const std::lock_guard lock(TheEngine().mutex());
  const auto& captures = TheEngine().captures();
  return std::any_of(captures.begin(), captures.end(), [](const auto& capture) {
    return capture->thread == std::this_thread::get_id();
  });
}

// Why the algorithm cannot work on this, or null.
const char* Refuse(const Product& product, const Algorithm& algorithm, const void* workspace,
                   size_t workspace_bytes) {
  if (algorithm.types != PackTypes(product)) return "an algorithm found for other types";
  const void* operands[4] = {product.a_data, product.b_data, product.c_data, product.d_data};
  for (int i = 0; i < 4; ++i) {
    if (i == 2 && product.beta == 0) continue;
    if (reinterpret_cast<uintptr_t>(operands[i]) % algorithm.alignment[i] != 0) {
      return "an operand less aligned than the algorithm was promised";
    }
  }
  const size_t needed = WorkspaceBytes(product, algorithm.num_splits);
  if (workspace_bytes < needed) return "less workspace than the algorithm needs";
  if (needed > 0 && reinterpret_cast<uintptr_t>(workspace) % 256 != 0) {
    return "a workspace not aligned to 256 bytes";
  }
  if (needed > 0 && !TheDeviceMemory().Holds(workspace, workspace_bytes)) {
    return "a workspace not within the device's memory";
  }
  return nullptr;
}

// A GPU would stop at an illegal address.
const char* OffDevice(const Product& product) {
  const auto holds = [](const void* data, const Matrix& matrix) {
    return TheDeviceMemory().Holds(data, static_cast<size_t>(matrix.span_bytes()));
  };
  if (!holds(product.a_data, product.a)) return "A is not within the device's memory";
  if (!holds(product.b_data, product.b)) return "B is not within the device's memory";
  if (!holds(product.d_data, product.d)) return "D is not within the device's memory";
  if (product.beta != 0 && !holds(product.c_data, product.c)) {
    return "C is not within the device's memory";
  }
  const auto holds_scales = [&](const float* scales, int64_t count) {
    const auto num = static_cast<size_t>(product.scales_are_vectors ? count : 1);
    return scales == nullptr || TheDeviceMemory().Holds(scales, num * sizeof(float));
  };
  if (!holds_scales(product.a_scale, product.rows()) ||
      !holds_scales(product.b_scale, product.columns())) {
    return "a scale is not within the device's memory";
  }
  return nullptr;
}

// What a real one may do anything with.
cublasStatus_t FailAt(const char* what) {
  Call([&](auto&) {
    TheEngine().Fail(std::string("cublasLtMatmul: ") + what);
    return cudaErrorIllegalAddress;
  });
  return CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t IssueProduct(const Product& product, cudaStream_t handle) {
  const cudaError_t error = Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (const cudaError_t unknown = TheEngine().Find(handle, &stream); unknown != cudaSuccess) {
      return unknown;
    }
    if (const char* bad = OffDevice(product); bad != nullptr) {
      TheEngine().Fail(std::string("cublasLtMatmul: ") + bad);
      return cudaErrorIllegalAddress;
    }
    const std::chrono::duration<double> at_least(TheEngine().device.product_seconds);
    const auto multiply = [product, at_least] {
      std::this_thread::sleep_for(at_least);
      Compute(product);
    };
    ++TheEngine().num_products;
    if (product.is_fast) ++TheEngine().num_fast_products;
    if (product.summation.adds_in_output) ++TheEngine().num_products_added_in_output;
    return TheEngine().Issue(*stream, "a product", Once(multiply, Work::Kind::kKernel));
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference,
                                              int num_requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* num_found) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (preference == nullptr || num_requested <= 0 || num_found == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *num_found = 0;
  if (IsThisThreadCapturing()) return CUBLAS_STATUS_INTERNAL_ERROR;
  Product product;
  const cublasStatus_t status = Describe(desc, a, b, c, d, &product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  // Of results that are no success, nothing but the state means anything.
  results[0] = {};
  results[(*num_found)++].state = CUBLAS_STATUS_NOT_SUPPORTED;
  const Attributes& wishes = preference->attributes;
  const auto mask = wishes.As<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
  const auto most_bytes = wishes.As<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
  std::array<size_t, kStrategies.size()> order = {kSliced};
  std::iota(order.begin() + 1, order.end(), 0);
  for (const size_t id : order) {
    if (*num_found == num_requested) break;
    const Strategy& strategy = kStrategies[id];
    const size_t bytes = WorkspaceBytes(product, strategy.num_splits);
    if ((strategy.reduction_scheme & ~mask) != 0 || bytes > most_bytes) continue;
    // The same as another one.
    if (AddsInOutput(strategy.reduction_scheme) && product.d.type == CUDA_R_32F) continue;
    if (!Fits(product, strategy)) continue;
    if (id == kSliced && !TheEngine().device.slices_few_columns) continue;
    const bool is_whole = TheEngine().device.prefers_whole_tiles;
    if (is_whole && Fits(product, kStrategies[kWholeTiles]) && id != kWholeTiles) continue;
    Algorithm algorithm{kTag,
                        static_cast<int32_t>(id),
                        strategy.num_splits,
                        strategy.reduction_scheme,
                        strategy.lanes,
                        PackTypes(product),
                        {},
                        {}};
    for (int i = 0; i < 4; ++i) {
      algorithm.alignment[i] = wishes.As<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i);
    }
    cublasLtMatmulHeuristicResult_t result = {};
    std::memcpy(&result.algo, &algorithm, sizeof(algorithm));
    result.workspaceSize = bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0f;
    const int count = std::min(TheEngine().device.algorithms_of_a_kind, num_requested - *num_found);
    std::fill_n(results + *num_found, count, result);
    *num_found += count;
  }
  return *num_found > 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr || result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (IsThisThreadCapturing()) return CUBLAS_STATUS_INTERNAL_ERROR;
  Product product;
  const cublasStatus_t status = Describe(desc, a, b, c, d, &product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const Algorithm algorithm = Unpack(*algo);
  if (algorithm.tag != kTag || algorithm.types != PackTypes(product)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool fits = !TheEngine().device.checks_algorithms || Fits(product, algorithm);
  if (!fits) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = WorkspaceBytes(product, algorithm.num_splits);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.0f;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Product product;
  const cublasStatus_t status = Describe(desc, a_layout, b_layout, c_layout, d_layout, &product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  product.alpha = *static_cast<const float*>(alpha);
  product.beta = *static_cast<const float*>(beta);
  product.a_data = a;
  product.b_data = b;
  product.c_data = c;
  product.d_data = d;
  if (algo != nullptr) {
    const Algorithm algorithm = Unpack(*algo);
    if (algorithm.tag != kTag) return FailAt("an algorithm nobody made");
    if (const char* why = Refuse(product, algorithm, workspace, workspace_bytes); why != nullptr) {
      std::fprintf(stderr, "CUDA emulation: cublasLtMatmul: %s\n", why);
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!Fits(product, algorithm)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!kStrategies[static_cast<size_t>(algorithm.id)].runs) {
      Remember(cudaErrorInvalidConfiguration);  // what its kernel's launch left behind
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    product.summation = {algorithm.num_splits, algorithm.lanes,
                         AddsInOutput(algorithm.reduction_scheme),
                         OtherFrom(product, static_cast<size_t>(algorithm.id))};
    product.workspace = static_cast<float*>(workspace);
  }
  return IssueProduct(product, stream);
}
