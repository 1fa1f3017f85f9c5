// Which registers of a kernel share words of a thread's frame.
#pragma once

#include <vector>

#include "tests/support/cuda_emulation/compiled/program.h"

namespace lockstep::cuda_emulation::ptx {

// nvcc gives every value a register of its own, thousands to a kernel: with a word for each, the
// frames of a block's threads fill all caches. Those of `registers` (their words in the program's
// frame) that never hold a value at the same time come to share words. What may be read before it
// was written keeps words that nothing else writes, so that it is still told from a number.
void ShareWords(const std::vector<Range>& registers, Program& program);

}  // namespace lockstep::cuda_emulation::ptx
