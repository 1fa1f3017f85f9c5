// Descriptors of cuBLASLt: made, set, destroyed.
#include "tests/support/cuda_emulation/runtime/cublas_attributes.h"

namespace {

template <typename Opaque>
cublasStatus_t Make(Opaque** object) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *object = new Opaque;
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Opaque>
cublasStatus_t Destroy(Opaque* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}
template <typename Opaque>
cublasStatus_t Set(Opaque* object, int attribute, const void* value, size_t bytes) {
  if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  return object->attributes.Set(attribute, value, bytes);
}

}  // namespace

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  const cublasStatus_t status = Make(layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  auto& attributes = (*layout)->attributes;
  attributes.Add(CUBLASLT_MATRIX_LAYOUT_TYPE, static_cast<uint32_t>(type));
  attributes.Add<int32_t>(CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_COL);
  attributes.Add(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
  attributes.Add(CUBLASLT_MATRIX_LAYOUT_COLS, columns);
  attributes.Add(CUBLASLT_MATRIX_LAYOUT_LD, ld);
  attributes.Add<int32_t>(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
  attributes.Add<int64_t>(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Destroy(layout);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  return Set(layout, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  const cublasStatus_t status = Make(desc);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  auto& attributes = (*desc)->attributes;
  attributes.Add<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute);
  attributes.Add<int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale);
  attributes.Add<int32_t>(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_HOST);
  attributes.Add<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
  attributes.Add<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  attributes.Add<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  attributes.Add<int32_t>(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 0);
  attributes.Add<const float*>(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, nullptr);
  attributes.Add<const float*>(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, nullptr);
  attributes.Add<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0);
  for (const int mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
    attributes.Add<int32_t>(mode, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return Destroy(desc); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return Set(desc, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  const cublasStatus_t status = Make(preference);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  auto& attributes = (*preference)->attributes;
  attributes.Add<uint32_t>(CUBLASLT_MATMUL_PREF_SEARCH_MODE, CUBLASLT_SEARCH_BEST_FIT);
  attributes.Add<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  attributes.Add<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           CUBLASLT_REDUCTION_SCHEME_MASK);
  for (int i = 0; i < 4; ++i) {
    attributes.Add<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i, 256);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return Set(preference, attribute, value, bytes);
}

#define LOCKSTEP_STATUS_NAME(status) \
  case status:                       \
    return #status

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_SUCCESS);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_NOT_INITIALIZED);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_ALLOC_FAILED);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_INVALID_VALUE);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_ARCH_MISMATCH);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_MAPPING_ERROR);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_EXECUTION_FAILED);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_INTERNAL_ERROR);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_NOT_SUPPORTED);
    LOCKSTEP_STATUS_NAME(CUBLAS_STATUS_LICENSE_ERROR);
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
