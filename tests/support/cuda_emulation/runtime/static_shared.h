// The blocks' static shared memory: every variable declared __shared__ (language.h).
#pragma once

#include <vector>

namespace lockstep::cuda_emulation {

// These do nothing under AddressSanitizer, where these variables have no sections.
void FillStaticShared(unsigned char byte);
// Of a block that is put aside while others run.
void SaveStaticShared(std::vector<char>& saved);
void RestoreStaticShared(const std::vector<char>& saved);

}  // namespace lockstep::cuda_emulation
