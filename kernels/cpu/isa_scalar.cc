// Kernels for any processor. Without a fused multiply-add instruction in the baseline each one is a
// library call: right, not fast.
#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/portable_vector.h"

namespace lockstep::cpu {

constinit const VectorKernels kScalarKernels =
    MakeKernels<PortableVector<8, 4, false>>("scalar", kScalarQuantized);

}  // namespace lockstep::cpu
