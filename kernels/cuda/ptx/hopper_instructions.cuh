// Instructions of Hopper (sm_90a): barriers in shared memory, copies of boxes of a tensor, and
// products of a warpgroup, four warps whose first is a multiple of four.
//
// What compiles for another architecture must not call them: LOCKSTEP_IS_HOPPER. Chosen by include
// path, as device_instructions.cuh is.
// Source: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "Asynchronous warpgroup level matrix
// instructions", "setmaxnreg", "Async proxy".
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LOCKSTEP_IS_HOPPER 1
#else
#define LOCKSTEP_IS_HOPPER 0
#endif

namespace lockstep::cuda {

// As descriptors and swizzles count it.
__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// ---- barriers: 8 bytes of shared memory each ----
// A phase ends when `arrivals` have come and as many bytes as were expected. Phases are numbered
// 0, 1, 0, ...; the one before the first counts as ended, with parity 1.
__device__ inline void BarrierInit(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
// By the thread that has initialised, before other threads meet it.
__device__ inline void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void BarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
// One arrival, and the phase does not end before `bytes` have been copied.
__device__ inline void BarrierArriveExpect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// Has the phase of this parity ended? False after a short wait at most.
__device__ inline bool BarrierTryWait(uint64_t* barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(ended)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

__device__ inline int64_t ClockCycles() { return clock64(); }
// Ends the kernel with an error, and with it the use of the device: by a store to where there is no
// memory, as around a trap the compiler gives a warpgroup no registers beyond those it began with.
__device__ inline void StopKernel() {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(uint64_t{0}), "r"(0) : "memory");
}

// Barriers 1.. of the block, of `threads` threads in whole warps; arriving does not wait.
template <int threads>
__device__ inline void NamedBarrierSync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}
template <int threads>
__device__ inline void NamedBarrierArrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

// As NamedBarrierSync, and is `mine` true on any of the threads? Source: PTX ISA, "bar".
template <int threads>
__device__ inline bool NamedBarrierAny(int id, bool mine) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %2, 0;\n"
      "bar.red.or.pred q, %1, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(static_cast<uint32_t>(mine)), "n"(threads)
      : "memory");
  return any != 0;
}

// The box at {x, y, z} of a tensor of three dimensions comes to `shared`, zeros where the tensor
// ends, and counts with all its bytes for the barrier's phase. `map` is a kernel's
// __grid_constant__ parameter.
__device__ inline void CopyBox(void* shared, const CUtensorMap& map, uint64_t* barrier, int x,
                               int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4, %5}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// What this thread wrote to shared memory is seen by copies and products that are issued after a
// barrier which comes after this.
__device__ inline void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers of each thread of a warpgroup, by all of it; what one gives others can take.
template <int count>
__device__ inline void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace lockstep::cuda
