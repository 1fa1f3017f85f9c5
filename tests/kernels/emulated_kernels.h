// The kernels of the 16-lane instruction sets over emulated vectors: all of their logic but the
// intrinsics, on any processor.
#pragma once

#include "kernels/cpu/vector_kernels.h"

namespace lockstep::testing {

extern const cpu::VectorKernels kEmulated512Kernels;
extern const cpu::VectorKernels kEmulated512Bf16Kernels;  // with a bf16 dot product
extern const cpu::VectorKernels kEmulatedAmxKernels;      // and tiles of bytes

}  // namespace lockstep::testing
