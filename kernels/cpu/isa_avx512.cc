// Kernels for AVX-512 (F, BW, DQ, VL).
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/make_kernels.h"

namespace lockstep::cpu {

constinit const VectorKernels kAvx512Kernels = MakeKernels<Avx512Vector>("avx512");

}  // namespace lockstep::cpu
