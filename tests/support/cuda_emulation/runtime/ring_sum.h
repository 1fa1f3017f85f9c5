// What the collectives of the emulated NCCL compute.
#pragma once

#include <nccl.h>

#include <vector>

namespace lockstep::cuda_emulation {

size_t BytesOf(ncclDataType_t type);

// to = the sum over ranks of terms[rank][count], f32 or int32; to may be one of the terms. Element
// i is added up from rank i mod n on, around the ring: the same bits on every rank, in an order
// that differs from element to element.
void RingSum(const std::vector<const void*>& terms, size_t count, ncclDataType_t type, void* to);

// to = the terms of `bytes` bytes one after another; a term may lie in its place already.
void Concatenate(const std::vector<const void*>& terms, size_t bytes, void* to);

}  // namespace lockstep::cuda_emulation
