// Kernels for AVX-512 (F, BW, DQ, VL), without and with VNNI, and tiles of bytes (AMX).
#include "kernels/cpu/avx512_vector.h"
#include "kernels/cpu/make_kernels.h"

namespace lockstep::cpu {

constinit const VectorKernels kAvx512Kernels = MakeKernels<Avx512Vector>("avx512", kAvx2Quantized);
constinit const VectorKernels kAvx512VnniKernels =
    MakeKernels<Avx512Vector>("avx512vnni", kAvx512VnniQuantized);
constinit const VectorKernels kAmxKernels = MakeKernels<Avx512Vector>("amx", kAmxQuantized);

}  // namespace lockstep::cpu
