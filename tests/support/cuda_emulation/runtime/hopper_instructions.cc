#include <hopper_instructions.cuh>
#include <wgmma.cuh>

#include "tests/support/cuda_emulation/runtime/async_proxy.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"

namespace lockstep::cuda {

namespace {

using cuda_emulation::Site;

cuda_emulation::AsyncProxy& Proxy() { return cuda_emulation::TheBlockRunner().Async(); }

}  // namespace

uint32_t SharedAddress(const void* shared, const Site& site) {
  return Proxy().AddressOf(shared, site);
}

void BarrierInit(uint64_t* barrier, uint32_t arrivals, const Site& site) {
  Proxy().Init(barrier, arrivals, site);
}
void FenceBarrierInit() { Proxy().FenceInit(); }
void BarrierArrive(uint64_t* barrier, const Site& site) { Proxy().Arrive(barrier, 0, site); }
void BarrierArriveExpect(uint64_t* barrier, uint32_t bytes, const Site& site) {
  Proxy().Arrive(barrier, bytes, site);
}
bool BarrierTryWait(uint64_t* barrier, uint32_t parity, const Site& site) {
  return Proxy().TryWait(barrier, parity, site);
}

int64_t ClockCycles() { return Proxy().Clock(); }
void StopKernel(const Site& site) { cuda_emulation::FailThread("trap", site); }

void emulated::NamedBarrier(int id, int threads, bool wait, const Site& site) {
  Proxy().NamedBarrier(id, threads, wait, site);
}

bool emulated::NamedBarrierAny(int id, int threads, bool mine, const Site& site) {
  return Proxy().NamedBarrierAny(id, threads, mine, site);
}

void CopyBox(void* shared, const CUtensorMap& map, uint64_t* barrier, int x, int y, int z,
             const Site& site) {
  Proxy().Copy(shared, map, barrier, {x, y, z}, site);
}
void FenceAsyncProxy() { Proxy().Fence(); }

void emulated::WgmmaFence(const Site& site) { Proxy().products().Fence(site); }
void emulated::FenceRegisters(const void* registers, int count) {
  Proxy().products().FenceRegisters(registers, count);
}
void emulated::IssueProduct(const Product& product, const Site& site) {
  Proxy().products().Issue(product, site);
}
void emulated::WgmmaCommit(const Site& site) { Proxy().products().Commit(site); }
void emulated::WgmmaWait(int newest, const float* sums, const Site& site) {
  Proxy().products().Wait(newest, sums, site);
}

}  // namespace lockstep::cuda
