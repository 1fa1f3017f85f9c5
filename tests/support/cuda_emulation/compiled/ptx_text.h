// The text that nvcc makes of a source file of kernels, taken apart: PTX, the GPU's assembly
// language. What statements mean is program.h's.
// Source of syntax: PTX ISA, "Syntax", "State Spaces, Types, and Variables", "Directives".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::cuda_emulation::ptx {

// Of memory: a parameter, or what a kernel or all of a file's kernels share.
struct Variable {
  std::string name;
  int64_t alignment = 1;
  int64_t bytes = 0;
  bool is_dynamic = false;  // its size comes with the launch
};

// One statement of a kernel. Exactly one of label, directive and opcode is set, or none where a
// scope begins or ends.
struct Statement {
  unsigned line = 0;
  bool opens_scope = false;
  bool closes_scope = false;
  std::string label;
  std::string directive;  // .reg, .local or .shared: all of it
  std::string guard;      // a predicate, or ""
  bool guard_is_negated = false;
  std::string opcode;
  std::vector<std::string> operands;  // brackets and braces with what is in them
};

struct KernelText {
  std::string name;
  std::vector<Variable> parameters;
  std::vector<Statement> body;
};

struct ModuleText {
  std::string file;
  std::vector<Variable> shared;  // of all kernels
  std::vector<KernelText> kernels;
};

// INVALID_ARGUMENT with file and line where the text is not what is known here.
absl::StatusOr<ModuleText> ParseModule(std::string file, absl::string_view text);

// "a, {b, c}, [d+4]" at its outermost commas.
std::vector<std::string> SplitOperands(absl::string_view text);

// ".align 8 .b8 name[128]", ".u64 name": what follows the state space.
absl::StatusOr<Variable> ParseVariable(absl::string_view text);

}  // namespace lockstep::cuda_emulation::ptx
