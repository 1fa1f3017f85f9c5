#include "tests/kernels/emulated_kernels.h"

#include "kernels/cpu/make_kernels.h"
#include "kernels/cpu/portable_vector.h"
#include "kernels/cpu/quantized_tiles.h"
#include "tests/kernels/emulated_tiles.h"

namespace lockstep::testing {

constinit const cpu::VectorKernels kEmulated512Kernels =
    cpu::MakeKernels<cpu::PortableVector<16, 12, false>>("emulated512", cpu::kScalarQuantized);
constinit const cpu::VectorKernels kEmulated512Bf16Kernels =
    cpu::MakeKernels<cpu::PortableVector<16, 12, true>>("emulated512bf16", cpu::kScalarQuantized);

namespace {
constinit const cpu::QuantizedKernels kEmulatedAmxQuantized =
    cpu::MakeTiledKernels<PortableLanes, EmulatedTiles>("emulatedamx");
}
constinit const cpu::VectorKernels kEmulatedAmxKernels =
    cpu::MakeKernels<cpu::PortableVector<16, 12, true>>("emulatedamx", kEmulatedAmxQuantized);

}  // namespace lockstep::testing
