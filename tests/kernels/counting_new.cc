#include "tests/kernels/counting_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> num_allocations = 0;
}  // namespace

void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size); memory != nullptr) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace lockstep::testing {

int64_t NumAllocations() { return num_allocations; }

}  // namespace lockstep::testing
