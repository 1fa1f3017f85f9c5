// Kernels as nvcc has compiled them, run in place of the functions that the emulation's compiler
// has made of the same sources.
//
// LOCKSTEP_CUDA_COMPILED names files of PTX, separated by colons: with it a program of the
// emulation runs what they hold, and launching any other kernel is a failure. So is, beyond what is
// enforced of kernels in any case (emulation.h), an access to memory that no kernel may touch or
// that is not aligned to its size, and an instruction that is not known here; with
// LOCKSTEP_CUDA_RACES set also a race in shared memory (races.h).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/cuda_emulation/compiled/ptx_text.h"
#include "tests/support/cuda_emulation/compiled/thread.h"

namespace lockstep::cuda_emulation::ptx {

// Used with the device's lock held.
class CompiledKernels {
 public:
  static absl::StatusOr<CompiledKernels> Read(const std::vector<std::string>& files);

  // Off unless asked: launches take several times as long.
  void LookForRaces(bool look) { looks_for_races_ = look; }

  // What a launch of the host's function is to run. NOT_FOUND for a kernel that is not in the
  // files, INVALID_ARGUMENT for one that cannot be run or takes other arguments.
  absl::StatusOr<Launch> Prepare(const void* kernel,
                                 std::span<const std::span<const char>> arguments,
                                 size_t dynamic_shared_bytes);

 private:
  struct Kernel {
    const ModuleText* module;
    const KernelText* text;
    std::shared_ptr<const Program> program;  // once it has been launched
    std::shared_ptr<SpareFrames> spare_frames;
  };

  absl::Status Add(const std::string& file);

  std::vector<std::unique_ptr<ModuleText>> modules_;
  std::map<std::string, Kernel> kernels_;  // by their common names
  bool looks_for_races_ = false;
};

// Those that the environment names; null without. Ends the process where they cannot be read.
CompiledKernels* TheCompiledKernels();

// Of a launch, with the kernel's own variables behind the dynamic ones.
size_t SharedBytesOf(const Launch& launch);

}  // namespace lockstep::cuda_emulation::ptx
