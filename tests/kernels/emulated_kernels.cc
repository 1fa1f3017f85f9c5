#include "tests/kernels/emulated_kernels.h"

#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/portable_vector.h"

namespace lockstep::testing {

constinit const cpu::VectorKernels kEmulated512Kernels =
    cpu::MakeKernels<cpu::PortableVector<16, 12, false>>("emulated512", cpu::kScalarQuantized);
constinit const cpu::VectorKernels kEmulated512Bf16Kernels =
    cpu::MakeKernels<cpu::PortableVector<16, 12, true>>("emulated512bf16", cpu::kScalarQuantized);

}  // namespace lockstep::testing
