#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/support/cuda_emulation/compiled/frame_layout.h"
#include "tests/support/cuda_emulation/compiled/opcode.h"
#include "tests/support/cuda_emulation/compiled/program.h"
#include "tests/support/cuda_emulation/runtime/async_proxy.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

constexpr uint32_t kUnwritten = 0xffffffffu;  // registers that nobody has written: no numbers

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

struct Register {
  int word = -1;
  int words = 1;
};

const std::map<std::string, Register, std::less<>>& SpecialRegisters() {
  static const auto* registers = new std::map<std::string, Register, std::less<>>{
      {"%tid.x", {kThreadX}},     {"%tid.y", {kThreadY}},     {"%tid.z", {kThreadZ}},
      {"%ctaid.x", {kBlockX}},    {"%ctaid.y", {kBlockY}},    {"%ctaid.z", {kBlockZ}},
      {"%ntid.x", {kBlockSizeX}}, {"%ntid.y", {kBlockSizeY}}, {"%ntid.z", {kBlockSizeZ}},
      {"%nctaid.x", {kGridX}},    {"%nctaid.y", {kGridY}},    {"%nctaid.z", {kGridZ}},
      {"%laneid", {kLane}}};
  return *registers;
}

Unit UnitOf(const Opcode& opcode) {
  const std::string& name = opcode.name;
  if (name == "mma") return Unit::kProduct;
  if (name == "ld" || name == "st" || name == "atom" || name == "ldmatrix" || name == "cp") {
    return Unit::kMemory;
  }
  for (const char* special : {"ex2", "lg2", "rcp", "rsqrt", "sqrt"}) {
    if (name == special) return Unit::kSpecial;
  }
  return Unit::kOther;
}

Flow FlowOf(const Opcode& opcode) {
  if (opcode.name == "bra") return Flow::kBranch;
  return opcode.name == "ret" || opcode.name == "exit" ? Flow::kReturn : Flow::kNext;
}

// Of the first operand, which has `size` elements where it is a list.
int NumResults(const Opcode& opcode, const Instruction& instruction, size_t size) {
  for (const char* without : {"st", "red", "cp", "fence", "membar", "setmaxnreg", "griddepcontrol",
                              "wgmma", "bra", "ret", "exit"}) {
    if (opcode.name == without) return 0;
  }
  if ((opcode.name == "bar" || opcode.name == "barrier") && !opcode.Has("red")) return 0;
  if (opcode.name == "mbarrier" && opcode.Has("init")) return 0;
  if (instruction.begins_with_list) return static_cast<int>(size);
  return std::min(opcode.name == "shfl" || opcode.name == "setp" ? 2 : 1, instruction.num_r);
}

// A number as it stands, its bits.
bool ParseNumber(const std::string& text, uint64_t* bits) {
  if (text.size() == 10 && absl::StartsWith(text, "0f")) {
    uint32_t single = 0;
    if (!absl::SimpleHexAtoi(text.substr(2), &single)) return false;
    *bits = single;
    return true;
  }
  if (text.size() == 18 && absl::StartsWith(text, "0d")) {
    return absl::SimpleHexAtoi(text.substr(2), bits);
  }
  if (absl::StartsWith(text, "0x")) return absl::SimpleHexAtoi(text.substr(2), bits);
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number)) {
    *bits = static_cast<uint64_t>(number);
    return true;
  }
  return absl::SimpleAtoi(text, bits);
}

class Assembler {
 public:
  Assembler(const ModuleText& module, const KernelText& kernel)
      : module_(module), kernel_(kernel), program_(std::make_unique<Program>()) {
    program_->name = kernel.name;
    program_->file = module.file;
    program_->frame.assign(kFirstRegister, kUnwritten);
    scopes_.emplace_back(SpecialRegisters());
  }

  absl::StatusOr<std::unique_ptr<Program>> Assemble() {
    PlaceParameters();
    PlaceOperandsOfProducts();
    for (const Statement& statement : kernel_.body) {
      if (absl::Status status = Add(statement); !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(module_.file, ":", statement.line, ": ", status.message()));
      }
    }
    for (const auto& [instruction, label] : branches_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) {
        return absl::InvalidArgumentError(absl::StrCat(kernel_.name, ": no label ", label));
      }
      program_->code[instruction].target = found->second;
    }
    ShareWords(registers_, *program_);
    return std::move(program_);
  }

 private:
  // As the host lays arguments out, each aligned to itself.
  void PlaceParameters() {
    program_->parameters = kernel_.parameters;
    for (const Variable& parameter : kernel_.parameters) {
      const int64_t offset = RoundUp(program_->parameter_bytes, parameter.alignment);
      program_->parameter_offsets.push_back(offset);
      program_->parameter_bytes = offset + parameter.bytes;
      symbols_[parameter.name] = {kParameters, offset};
    }
  }

  // Products of a warpgroup read and write registers in the background, in the frame: those of one
  // operand are to lie side by side, and all of them together.
  void PlaceOperandsOfProducts() {
    const int begin = static_cast<int>(program_->frame.size());
    for (const Statement& statement : kernel_.body) {
      if (!absl::StartsWith(statement.opcode, "wgmma.mma_async")) continue;
      for (const std::string& operand : statement.operands) {
        if (operand.front() != '{') continue;
        for (const std::string& name :
             SplitOperands(absl::string_view(operand).substr(1, operand.size() - 2))) {
          NewRegister(name, false);
        }
      }
    }
    product_operands_ = {begin, static_cast<int>(program_->frame.size()) - begin};
    registers_.clear();  // those keep their places
  }

  absl::Status Add(const Statement& statement) {
    if (statement.opens_scope) {
      scopes_.emplace_back();
    } else if (statement.closes_scope) {
      scopes_.pop_back();
    } else if (!statement.label.empty()) {
      labels_[statement.label] = static_cast<int>(program_->code.size());
    } else if (!statement.directive.empty()) {
      return Declare(statement.directive);
    } else {
      return AddInstruction(statement);
    }
    return absl::OkStatus();
  }

  absl::Status Declare(absl::string_view directive) {
    if (absl::ConsumePrefix(&directive, ".reg")) return DeclareRegisters(directive);
    const bool is_local = absl::ConsumePrefix(&directive, ".local");
    if (is_local || absl::ConsumePrefix(&directive, ".shared")) {
      absl::StatusOr<Variable> variable = ParseVariable(directive);
      if (!variable.ok()) return variable.status();
      if (is_local) {
        PlaceLocal(*variable);
      } else {
        PlaceShared(*variable);
      }
      return absl::OkStatus();
    }
    if (absl::StartsWith(directive, ".pragma") || absl::StartsWith(directive, ".loc")) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("'", directive, "' is not known here"));
  }

  void PlaceLocal(const Variable& variable) {
    const int64_t offset = RoundUp(program_->local_bytes, 16);
    symbols_[variable.name] = {kLocals, offset};
    program_->local_bytes = offset + variable.bytes;
  }

  void PlaceShared(const Variable& variable) {
    uint32_t address = kSharedBase;
    if (!variable.is_dynamic) {
      const int64_t offset = RoundUp(program_->static_shared_bytes, variable.alignment);
      program_->static_shared_bytes = offset + variable.bytes;
      address = kStaticShared + static_cast<uint32_t>(offset);
    }
    symbols_[variable.name] = {Constant(address), 0};
  }

  // ".f32 %f<128>", ".pred p, q"
  absl::Status DeclareRegisters(absl::string_view declaration) {
    const absl::string_view text = absl::StripAsciiWhitespace(declaration);
    const size_t end = text.find_first_of(" \t");
    if (end == absl::string_view::npos) return absl::InvalidArgumentError("no registers");
    const bool is_long = absl::EndsWith(text.substr(0, end), "64");
    for (const std::string& name : SplitOperands(text.substr(end))) {
      const std::vector<std::string> parts = absl::StrSplit(name, absl::ByAnyChar("<>"));
      int count = 0;
      if (parts.size() == 1) {
        NewRegister(name, is_long);
      } else if (!absl::SimpleAtoi(parts[1], &count) || count < 0 || count > 1 << 16) {
        return absl::InvalidArgumentError(absl::StrCat("no number of registers: ", name));
      }
      for (int i = 0; i < count; ++i) NewRegister(absl::StrCat(parts[0], i), is_long);
    }
    return absl::OkStatus();
  }
  // One that has its place already keeps it.
  void NewRegister(const std::string& name, bool is_long) {
    const Register place = {static_cast<int>(program_->frame.size()), is_long ? 2 : 1};
    if (!scopes_.back().try_emplace(name, place).second) return;
    registers_.push_back({place.word, place.words});
    program_->frame.resize(program_->frame.size() + place.words, kUnwritten);
  }

  int Constant(uint64_t bits) {
    const auto [found, is_new] = constants_.try_emplace(bits, 0);
    if (is_new) {
      found->second = static_cast<int>(program_->frame.size());
      program_->frame.push_back(static_cast<uint32_t>(bits));
      program_->frame.push_back(static_cast<uint32_t>(bits >> 32));
    }
    return found->second;
  }

  absl::Status AddInstruction(const Statement& statement) {
    Instruction instruction;
    instruction.site = Site(program_->file.c_str(), statement.line);
    if (!statement.guard.empty()) {
      const Register* guard = FindRegister(statement.guard);
      if (guard == nullptr) return absl::InvalidArgumentError("an unknown guard");
      instruction.guard = guard->word;
      instruction.guard_is_negated = statement.guard_is_negated;
    }
    const Opcode opcode = OpcodeOf(statement.opcode);
    std::vector<std::string> operands = statement.operands;
    if (opcode.name == "bra") {
      branches_.emplace_back(program_->code.size(), operands.empty() ? "" : operands[0]);
      operands.clear();
    }
    instruction.begins_with_list = !operands.empty() && operands[0][0] == '{';
    size_t in_first = 0;  // of a list
    for (const std::string& operand : operands) {
      if (absl::Status status = AddOperand(opcode, operand, instruction); !status.ok()) {
        return status;
      }
      if (&operand == &operands.front()) in_first = instruction.list.size();
    }
    instruction.flow = FlowOf(opcode);
    instruction.num_results = NumResults(opcode, instruction, in_first);
    instruction.product_operands = product_operands_;
    instruction.unit = UnitOf(opcode);
    instruction.is_atomic = opcode.name == "atom";
    instruction.writes = opcode.name == "st" || instruction.is_atomic;
    if (instruction.unit == Unit::kMemory) instruction.access = program_->num_accesses++;
    if (!opcode.types.empty()) instruction.type = opcode.types.front();
    if (opcode.types.size() > 1) instruction.from = opcode.types[1];
    for (const auto find :
         {&FindArithmetic, &FindBits, &FindConversion, &FindMemory, &FindTogether}) {
      instruction.execute = find(opcode, instruction);
      if (instruction.execute != nullptr) {
        program_->code.push_back(std::move(instruction));
        return absl::OkStatus();
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the instruction '", statement.opcode, "' is not known here"));
  }

  const Register* FindRegister(absl::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto found = scope->find(name);
      if (found != scope->end()) return &found->second;
    }
    return nullptr;
  }

  absl::Status AddOperand(const Opcode& opcode, const std::string& operand,
                          Instruction& instruction) {
    const char first = operand.front();
    if (first == '{') {
      return AddList(operand.substr(1, operand.size() - 2), instruction);
    }
    if (first == '[') {
      const std::vector<std::string> parts =
          SplitOperands(absl::string_view(operand).substr(1, operand.size() - 2));
      if (parts.size() > 1) {  // coordinates in a tensor
        absl::Status status = AddOperand(opcode, parts[1], instruction);
        if (!status.ok()) return status;
      }
      return AddSum(parts.empty() ? "" : parts[0], instruction);
    }
    const std::vector<std::string> pair = absl::StrSplit(operand, '|');
    absl::Status status = AddSum(pair[0], instruction);
    const bool may_be_pair =
        instruction.num_r == 1 && (opcode.name == "shfl" || opcode.name == "setp");
    if (status.ok() && pair.size() > 1) return AddSum(pair[1], instruction);
    if (status.ok() && may_be_pair) return Push(-1, 0, 1, instruction);
    return status;
  }

  absl::Status AddList(absl::string_view elements, Instruction& instruction) {
    for (const std::string& element : SplitOperands(elements)) {
      Instruction one;
      if (absl::Status status = AddSum(element, one); !status.ok()) return status;
      instruction.list.push_back(one.r[0]);
      instruction.is_wide = !one.IsShort(0) && one.r[0] >= 0;
    }
    return absl::OkStatus();
  }

  static absl::Status Push(int r, int64_t offset, int words, Instruction& instruction) {
    if (instruction.num_r == static_cast<int>(instruction.r.size())) {
      return absl::InvalidArgumentError("more operands than expected");
    }
    instruction.r[instruction.num_r] = r;
    instruction.offsets[instruction.num_r] = offset;
    if (words == 1) instruction.short_r |= static_cast<uint8_t>(1 << instruction.num_r);
    ++instruction.num_r;
    return absl::OkStatus();
  }

  // A register, a number or a variable, and what is added to it.
  absl::Status AddSum(const std::string& text, Instruction& instruction) {
    if (text == "_") return Push(-1, 0, 1, instruction);
    uint64_t bits = 0;
    if (ParseNumber(text, &bits)) return Push(Constant(bits), 0, 2, instruction);
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('+', 1));
    int64_t offset = 0;
    if (parts.size() > 1 && !absl::SimpleAtoi(parts[1], &offset)) {
      return absl::InvalidArgumentError(absl::StrCat("no number in '", text, "'"));
    }
    if (const Register* found = FindRegister(parts[0]); found != nullptr) {
      return Push(found->word, offset, found->words, instruction);
    }
    if (parts[0] == "%clock64") {
      instruction.reads_clock = true;
      return Push(Constant(0), 0, 2, instruction);
    }
    if (!symbols_.contains(parts[0])) {
      for (const Variable& variable : module_.shared) {
        if (variable.name == parts[0]) PlaceShared(variable);
      }
    }
    const auto symbol = symbols_.find(parts[0]);
    if (symbol == symbols_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not known here"));
    }
    return Push(symbol->second.first, symbol->second.second + offset, 2, instruction);
  }

  const ModuleText& module_;
  const KernelText& kernel_;
  std::unique_ptr<Program> program_;
  std::vector<std::map<std::string, Register, std::less<>>> scopes_;
  std::map<std::string, std::pair<int, int64_t>> symbols_;  // a word with an address, and an offset
  std::vector<Range> registers_;                            // which may share words
  Range product_operands_;
  std::map<uint64_t, int> constants_;
  std::map<std::string, int> labels_;
  std::vector<std::pair<size_t, std::string>> branches_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> Assemble(const ModuleText& module,
                                                  const KernelText& kernel) {
  return Assembler(module, kernel).Assemble();
}

}  // namespace lockstep::cuda_emulation::ptx
