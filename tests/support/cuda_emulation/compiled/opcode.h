// The parts of an instruction's name, and who knows what does it.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/support/cuda_emulation/compiled/program.h"

namespace lockstep::cuda_emulation::ptx {

// "ld.global.v4.f32"
struct Opcode {
  std::string name;                // "ld"
  std::vector<std::string> parts;  // "global", "v4", "f32"
  std::vector<Type> types;         // of the parts that are types, untyped bits as unsigned

  bool Has(absl::string_view part) const {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  }
};
Opcode OpcodeOf(absl::string_view text);

// What does the instruction, whose registers and first type are known; null where it is not known
// here. They set the instruction's mode, space, count and the like.
Execute FindArithmetic(const Opcode& opcode, Instruction& instruction);
Execute FindBits(const Opcode& opcode, Instruction& instruction);
Execute FindConversion(const Opcode& opcode, Instruction& instruction);
Execute FindMemory(const Opcode& opcode, Instruction& instruction);
Execute FindTogether(const Opcode& opcode, Instruction& instruction);

}  // namespace lockstep::cuda_emulation::ptx
