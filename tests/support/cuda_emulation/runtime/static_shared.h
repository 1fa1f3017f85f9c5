// The blocks' static shared memory: every variable declared __shared__ (language.h).
#pragma once

namespace lockstep::cuda_emulation {

// Nothing under AddressSanitizer, where these variables have no sections.
void FillStaticShared(unsigned char byte);

}  // namespace lockstep::cuda_emulation
