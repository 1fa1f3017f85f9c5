#include "tests/support/cuda_emulation/runtime/ready_threads.h"

#include <algorithm>
#include <bit>

namespace lockstep::cuda_emulation {

void ReadyThreads::Clear(int num_threads) {
  threads_.resize(std::max(threads_.size(), std::bit_ceil(static_cast<size_t>(num_threads))));
  last_ = threads_.size() - 1;
  first_ = end_ = 0;
}

int ReadyThreads::Take(size_t index) {
  int& place = threads_[(first_ + index) & last_];
  const int thread = place;
  if (first_ + index + 1 == end_) {
    --end_;
  } else {
    place = threads_[first_++ & last_];
  }
  return thread;
}

}  // namespace lockstep::cuda_emulation
