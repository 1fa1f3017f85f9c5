#include "tests/support/cuda_emulation/runtime/warp_functions.h"

#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"

namespace lockstep::cuda_emulation {

void BlockBarrier(const Site& site) { TheBlockRunner().Barrier(site); }
bool BlockBarrierOr(bool mine, const Site& site) { return TheBlockRunner().BarrierOr(mine, site); }

void WarpExchange(const char* name, uint32_t mask, void* operand, Exchange exchange,
                  const Site& site) {
  TheBlockRunner().Exchange(name, mask, operand, exchange, site);
}

int CurrentLane() { return TheBlockRunner().lane(); }

void FailThread(const char* what, const Site& site) {
  TheBlockRunner().Fail(absl::StrFormat("%s at %s:%d", what, site.file_name(), site.line()));
}

void ExchangeShuffle(void* const operands[32], uint32_t mask) {
  for (int lane = 0; lane < warpSize; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto& mine = *static_cast<Shuffle*>(operands[lane]);
    if ((mask >> mine.from & 1) == 0) {
      TheBlockRunner().Fail(absl::StrFormat(
          "a shuffle with mask %08x: lane %d reads from lane %d, which is not in it", mask, lane,
          mine.from));
    }
    mine.received = static_cast<const Shuffle*>(operands[mine.from])->given;
  }
}

namespace {

struct Vote {
  bool predicate;
  uint32_t all = 0;
};

void ExchangeVotes(void* const operands[32], uint32_t mask) {
  uint32_t all = 0;
  for (int lane = 0; lane < warpSize; ++lane) {
    if ((mask >> lane & 1) != 0 && static_cast<Vote*>(operands[lane])->predicate) all |= 1u << lane;
  }
  for (int lane = 0; lane < warpSize; ++lane) {
    if ((mask >> lane & 1) != 0) static_cast<Vote*>(operands[lane])->all = all;
  }
}

void ExchangeNothing(void* const[32], uint32_t) {}

}  // namespace

uint32_t Ballot(const char* name, uint32_t mask, bool predicate, const Site& site) {
  Vote vote{predicate};
  WarpExchange(name, mask, &vote, &ExchangeVotes, site);
  return vote.all;
}

}  // namespace lockstep::cuda_emulation

void __syncwarp(uint32_t mask, const lockstep::cuda_emulation::Site& site) {
  using namespace lockstep::cuda_emulation;
  WarpExchange("__syncwarp", mask, nullptr, &ExchangeNothing, site);
}
