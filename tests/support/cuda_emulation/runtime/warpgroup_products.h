// Products of warpgroups (PTX ISA, "wgmma.mma_async" and its neighbours; "Matrix descriptor";
// "Strides"), of descriptors with the 128-byte swizzle.
//
// A product is done when a warp waits for its group: it reads its operands then, and until then its
// sums are 0xff, which must still be there. Registers must have been fenced since they were last
// anybody else's, and hold at the issue and at the wait what they held at the fence. All warps of a
// group must issue the same.
//
// All four instructions are .aligned: every thread of a warpgroup must execute the same one, at the
// same place, so that in conditional code all must have decided alike. (PTX ISA of each: "In
// conditionally executed code, [it] should only be used if it is known that all threads in the
// warpgroup evaluate the condition identically, otherwise behavior is undefined".) Warps need not
// come together.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/support/cuda_emulation/runtime/warp_functions.h"
#include "tests/support/cuda_emulation/wgmma.cuh"

namespace lockstep::cuda_emulation {

class AsyncProxy;
class BlockRunner;

// Of one block, whose threads call it.
class WarpgroupProducts {
 public:
  WarpgroupProducts(BlockRunner& runner, const AsyncProxy& memory);

  void Fence(const Site& site);
  void FenceRegisters(const void* registers, int count);
  void Issue(const cuda::emulated::Product& product, const Site& site);
  void Commit(const Site& site);
  void Wait(int newest, const float* sums, const Site& site);
  std::string Leftover() const;

 private:
  struct Issued {
    cuda::emulated::Product product;
    int group;
    Site site;
  };
  // No vector, as a failure unwinds nothing.
  using OfLanes = std::array<const Issued*, 32>;
  struct Thread {
    std::vector<Issued> issued;
    int group = 0;
    std::map<float*, std::vector<float>> pending;             // the true sums
    std::map<const uint32_t*, std::vector<uint32_t>> fenced;  // registers by address
    int newest = 0;                                           // of a wait
    size_t executed = 0;                                      // instructions
    WarpgroupProducts* products = nullptr;
  };
  // What all warps of a group must agree on.
  struct Step {
    bool operator==(const Step&) const = default;
    bool is_f16;
    bool from_registers;
    uint64_t a;
    uint64_t b;
    int columns;
    bool accumulate;
  };
  struct Instruction {
    const char* name;
    int newest;  // of a wait
    Site site;
  };
  struct Group {
    std::vector<Instruction> instructions;
    std::vector<Step> steps;
    size_t done[4] = {};  // by warp
  };
  struct Matrices {
    float a[16][16];   // [row, k]
    float b[16][128];  // [k, column]
  };

  Group& MyGroup();
  void Execute(const Instruction& instruction);
  static void DoCommitted(void* const operands[32], uint32_t mask);
  void DoWarp(Thread* const (&lanes)[32], int newest);
  void Do(const OfLanes& product, Thread* const (&lanes)[32]);
  void CheckAgreement(const OfLanes& product);
  void ReadA(const OfLanes& product, Matrices& matrices) const;
  void ReadB(const Issued& issued, Matrices& matrices) const;
  void GiveBack(Thread& thread);
  const char* Chunk(uint32_t address, const Site& site) const;
  bool IsFenced(const Thread& thread, const uint32_t* registers, int count) const;
  int Warp() const;

  BlockRunner& runner_;
  const AsyncProxy& memory_;
  std::vector<Thread> threads_;
  std::vector<Group> groups_;
};

}  // namespace lockstep::cuda_emulation
