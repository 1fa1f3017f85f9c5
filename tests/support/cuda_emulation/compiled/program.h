// A kernel as it is run: statements with their operands found, each with the function that does it.
//
// A thread's registers are words of 32 bits in one frame: first what the thread is told
// (kFirst...), then its registers (frame_layout.h), then the constants that its instructions name.
// One of 64 bits has two words; predicates and registers of 16 bits have one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/cuda_emulation/compiled/ptx_text.h"
#include "tests/support/cuda_emulation/runtime/warp_functions.h"

namespace lockstep::cuda_emulation::ptx {

class Thread;
struct Instruction;
using Execute = void (*)(Thread& thread, const Instruction& instruction);

enum class Type : uint8_t {
  kNone,
  kPredicate,
  kU8,
  kS8,
  kU16,
  kS16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64
};
int BytesOf(Type type);

enum class Space : uint8_t { kGeneric, kParameter, kGlobal, kShared, kLocal };

// Words of the frame.
struct Range {
  int begin = 0;
  int count = 0;
};

// What executes an instruction, as far as it is told apart.
enum class Unit : uint8_t { kOther, kSpecial, kProduct, kMemory };
constexpr size_t kNumUnits = 4;

// Where a thread goes on: with the next instruction, or (with none that its guard skips) elsewhere.
enum class Flow : uint8_t { kNext, kBranch, kReturn };

// Registers are named by their first word in the frame; -1: there is none, or the result is
// discarded.
struct Instruction {
  Execute execute = nullptr;
  int guard = -1;
  bool guard_is_negated = false;
  std::array<int, 8> r = {-1, -1, -1, -1, -1, -1, -1, -1};  // as they stand, the result first
  std::array<int64_t, 8> offsets = {};                      // added to addresses in r
  int num_r = 0;
  int num_results = 0;    // of `list` where that comes first, otherwise of r
  uint8_t short_r = 0;    // bits: which of r have 32 bits
  std::vector<int> list;  // those in braces
  Flow flow = Flow::kNext;
  int target = 0;          // of a branch
  Range product_operands;  // all that the kernel's products of warpgroups read and write
  Type type = Type::kNone;
  Type from = Type::kNone;  // of a conversion
  Space space = Space::kGeneric;
  uint8_t count = 1;  // elements of a vector
  uint8_t mode = 0;   // which of those that an opcode has
  bool begins_with_list = false;
  bool is_wide = false;  // the register has 64 bits
  bool saturates = false;
  bool reads_clock = false;
  bool writes = false;  // memory
  bool is_atomic = false;
  Unit unit = Unit::kOther;
  int access = -1;  // its number among those that access memory
  Site site;

  bool IsShort(int index) const { return (short_r >> index & 1) != 0; }
};

// Where the frame tells what a thread is.
enum FrameWord : int {
  kThreadX,
  kThreadY,
  kThreadZ,
  kBlockX,
  kBlockY,
  kBlockZ,
  kBlockSizeX,
  kBlockSizeY,
  kBlockSizeZ,
  kGridX,
  kGridY,
  kGridZ,
  kLane,
  kUnused,
  kParameters,   // where they lie, 64 bits
  kLocals = 16,  // where its own memory lies
  kFirstRegister = 18,
};

struct Program {
  std::string name;
  std::string file;
  std::vector<Variable> parameters;
  std::vector<int64_t> parameter_offsets;
  int64_t parameter_bytes = 0;
  int64_t static_shared_bytes = 0;  // they follow the dynamic ones
  int64_t local_bytes = 0;
  int num_accesses = 0;         // instructions that access memory
  std::vector<uint32_t> frame;  // as a thread begins with it
  std::vector<Instruction> code;
};

// Shared variables of a fixed size follow the dynamic ones, and so where they begin depends on the
// launch: their addresses are counted from here on.
constexpr uint32_t kStaticShared = 1 << 20;

// INVALID_ARGUMENT, with file and line, of what is not known here.
absl::StatusOr<std::unique_ptr<Program>> Assemble(const ModuleText& module,
                                                  const KernelText& kernel);

}  // namespace lockstep::cuda_emulation::ptx
