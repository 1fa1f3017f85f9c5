// Characters as the bytes that they are written with.
//
// Pure functions, any thread.
#pragma once

#include <span>
#include <vector>

#include "model/grammar/grammar.h"

namespace lockstep::grammar {

// All characters of the ranges in UTF-8, surrogates left out: of each sequence, one byte of each of
// its ranges after the other, whichever they are.
std::vector<std::vector<ByteRange>> Utf8Sequences(std::span<const CodePointRange> ranges);

}  // namespace lockstep::grammar
