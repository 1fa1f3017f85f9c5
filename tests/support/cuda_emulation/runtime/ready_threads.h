// Which threads of a block can go on. Used by whoever has the device's lock.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep::cuda_emulation {

// Threads that can go on, each at most once, in the order in which they became ready.
class ReadyThreads {
 public:
  void Clear(int num_threads);  // room for so many
  bool empty() const { return first_ == end_; }
  size_t size() const { return end_ - first_; }
  void Add(int thread) { threads_[end_++ & last_] = thread; }
  // The index-th; the first takes its place unless it was the last.
  int Take(size_t index);

 private:
  std::vector<int> threads_;  // a ring of a power of two
  size_t last_ = 0;
  size_t first_ = 0, end_ = 0;
};

}  // namespace lockstep::cuda_emulation
