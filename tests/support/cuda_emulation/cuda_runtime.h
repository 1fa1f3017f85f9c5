// CUDA's runtime on the processor, for tests: what a program written for CUDA includes, so that its
// kernels and its use of streams, events and graphs run where there is no GPU.
//
// Names, types and values are those of NVIDIA's header (CUDA C++ Programming Guide; CUDA Runtime
// API reference); what is not here is not emulated and does not compile. Speed is not emulated. How
// tests choose what is pretended and learn of failures: emulation.h.
#pragma once

#include "tests/support/cuda_emulation/runtime/intrinsics.h"
#include "tests/support/cuda_emulation/runtime/language.h"
#include "tests/support/cuda_emulation/runtime/launch.h"
#include "tests/support/cuda_emulation/runtime/runtime_api.h"
#include "tests/support/cuda_emulation/runtime/warp_functions.h"
