// Attributes of a cuBLASLt object: numbers of up to 8 bytes, each of a size of its own.
#pragma once

#include <cublasLt.h>

#include <cstring>
#include <map>
#include <utility>

namespace lockstep::cuda_emulation {

class Attributes {
 public:
  template <typename T>
  void Add(int attribute, T value) {
    static_assert(sizeof(T) <= sizeof(uint64_t));
    Value& slot = values_[attribute];
    slot.bytes = sizeof(T);
    std::memcpy(&slot.bits, &value, sizeof(T));
  }
  // INVALID_VALUE for another size than the attribute's, NOT_SUPPORTED for unknown attributes.
  cublasStatus_t Set(int attribute, const void* value, size_t bytes) {
    const auto slot = values_.find(attribute);
    if (slot == values_.end()) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (value == nullptr || bytes != slot->second.bytes) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&slot->second.bits, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  template <typename T>
  T As(int attribute) const {
    T value;
    std::memcpy(&value, &values_.at(attribute).bits, sizeof(T));
    return value;
  }

 private:
  struct Value {
    size_t bytes = 0;
    uint64_t bits = 0;
  };
  std::map<int, Value> values_;
};

}  // namespace lockstep::cuda_emulation

struct cublasLtMatmulDescOpaque_t {
  lockstep::cuda_emulation::Attributes attributes;
};
struct cublasLtMatrixLayoutOpaque_t {
  lockstep::cuda_emulation::Attributes attributes;
};
struct cublasLtMatmulPreferenceOpaque_t {
  lockstep::cuda_emulation::Attributes attributes;
};
