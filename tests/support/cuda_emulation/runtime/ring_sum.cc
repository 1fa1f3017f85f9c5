#include "tests/support/cuda_emulation/runtime/ring_sum.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/nccl_mesh.h"

namespace lockstep::cuda_emulation {

namespace {

template <typename T>
void Sum(const std::vector<const void*>& terms, size_t count, T* to) {
  for (size_t i = 0; i < count; ++i) {
    size_t rank = i % terms.size();
    T sum = static_cast<const T*>(terms[rank])[i];
    for (size_t step = 1; step < terms.size(); ++step) {
      rank = rank + 1 == terms.size() ? 0 : rank + 1;
      sum += static_cast<const T*>(terms[rank])[i];
    }
    to[i] = sum;  // no other element needs what lay here
  }
}

const char* Name(Operation::Kind kind) {
  switch (kind) {
    case Operation::Kind::kAllReduce:
      return "all-reduce";
    case Operation::Kind::kReduceScatter:
      return "reduce-scatter";
    case Operation::Kind::kAllGather:
      return "all-gather";
    case Operation::Kind::kSend:
      return "send";
    case Operation::Kind::kRecv:
      return "receive";
  }
  return "";
}

}  // namespace

size_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
  }
  return 0;
}

size_t Operation::bytes() const { return count * BytesOf(type); }

std::string Operation::Describe() const {
  return absl::StrFormat("%s of %d bytes%s", Name(kind), bytes(),
                         peer < 0 ? "" : absl::StrFormat(", peer %d", peer));
}

void RingSum(const std::vector<const void*>& terms, size_t count, ncclDataType_t type, void* to) {
  if (type == ncclInt32) {
    Sum(terms, count, static_cast<int32_t*>(to));
  } else {
    Sum(terms, count, static_cast<float*>(to));
  }
}

void Concatenate(const std::vector<const void*>& terms, size_t bytes, void* to) {
  for (size_t rank = 0; rank < terms.size(); ++rank) {
    std::memmove(static_cast<char*>(to) + rank * bytes, terms[rank], bytes);
  }
}

}  // namespace lockstep::cuda_emulation
