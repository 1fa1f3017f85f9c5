// The emulated twins of kernels/cuda/ptx/hopper_instructions.cuh. What is enforced beyond their
// results: runtime/async_proxy.h.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#define LOCKSTEP_IS_HOPPER 1

namespace lockstep::cuda {

#define LOCKSTEP_SITE const cuda_emulation::Site& site = std::source_location::current()

// Of dynamic shared memory, which begins at an address that is a multiple of 16 and of no more.
uint32_t SharedAddress(const void* shared, LOCKSTEP_SITE);

void BarrierInit(uint64_t* barrier, uint32_t arrivals, LOCKSTEP_SITE);
void FenceBarrierInit();
void BarrierArrive(uint64_t* barrier, LOCKSTEP_SITE);
void BarrierArriveExpect(uint64_t* barrier, uint32_t bytes, LOCKSTEP_SITE);
// False once nothing in the block can go on, and now and then before.
bool BarrierTryWait(uint64_t* barrier, uint32_t parity, LOCKSTEP_SITE);

// Leaps when a BarrierTryWait has given up, and now and then, forwards or back, as for a thread
// that was stopped and goes on on another multiprocessor.
int64_t ClockCycles();
void StopKernel(LOCKSTEP_SITE);

namespace emulated {
void NamedBarrier(int id, int threads, bool wait, const cuda_emulation::Site& site);
bool NamedBarrierAny(int id, int threads, bool mine, const cuda_emulation::Site& site);
}  // namespace emulated
template <int threads>
void NamedBarrierSync(int id, LOCKSTEP_SITE) {
  static_assert(threads % 32 == 0);
  emulated::NamedBarrier(id, threads, true, site);
}
template <int threads>
void NamedBarrierArrive(int id, LOCKSTEP_SITE) {
  static_assert(threads % 32 == 0);
  emulated::NamedBarrier(id, threads, false, site);
}

template <int threads>
bool NamedBarrierAny(int id, bool mine, LOCKSTEP_SITE) {
  static_assert(threads % 32 == 0);
  return emulated::NamedBarrierAny(id, threads, mine, site);
}

void CopyBox(void* shared, const CUtensorMap& map, uint64_t* barrier, int x, int y, int z,
             LOCKSTEP_SITE);
void FenceAsyncProxy();

template <int count>
void GiveRegisters() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
}
template <int count>
void TakeRegisters() {
  static_assert(count % 8 == 0 && count >= 24 && count <= 256);
}

#undef LOCKSTEP_SITE

}  // namespace lockstep::cuda
