// Two tables of quantized kernels, asked the same.
#pragma once

#include "kernels/cpu/quantized_table.h"

namespace lockstep::cpu {

// Whether both give the same bits for a panel of made-up weights of 8 and of 4 bits, for as many
// rows as either's tiles may have and for one, in whole groups and in one cut short: instructions
// that have not been tried on every maker's processor are asked before they are used.
bool MultiplyAlike(const QuantizedKernels& a, const QuantizedKernels& b);

}  // namespace lockstep::cpu
