#pragma once

#include <memory>

#include "tests/support/cuda_emulation/runtime/engine.h"

// An event is a place in a stream, or in what a stream has captured.
struct CUevent_st {
  unsigned flags = 0;
  std::shared_ptr<CUstream_st> stream;  // null until it is recorded
  int64_t ticket = 0;
  std::shared_ptr<double> recorded_ms;
  std::shared_ptr<lockstep::cuda_emulation::Capture> capture;
  lockstep::cuda_emulation::CapturedPast past;
};
