#include "tests/support/cuda_emulation/compiled/opcode.h"

#include <utility>

#include "absl/strings/str_split.h"

namespace lockstep::cuda_emulation::ptx {

Opcode OpcodeOf(absl::string_view text) {
  static constexpr std::pair<absl::string_view, Type> kTypes[] = {
      {"pred", Type::kPredicate}, {"b8", Type::kU8},   {"u8", Type::kU8},   {"s8", Type::kS8},
      {"b16", Type::kU16},        {"u16", Type::kU16}, {"s16", Type::kS16}, {"b32", Type::kU32},
      {"u32", Type::kU32},        {"s32", Type::kS32}, {"b64", Type::kU64}, {"u64", Type::kU64},
      {"s64", Type::kS64},        {"f16", Type::kF16}, {"f32", Type::kF32}, {"f64", Type::kF64}};
  Opcode opcode;
  opcode.parts = absl::StrSplit(text, '.');
  opcode.name = opcode.parts.front();
  opcode.parts.erase(opcode.parts.begin());
  for (const std::string& part : opcode.parts) {
    for (const auto& [name, type] : kTypes) {
      if (part == name) opcode.types.push_back(type);
    }
  }
  return opcode;
}

int BytesOf(Type type) {
  switch (type) {
    case Type::kNone:
    case Type::kPredicate:
      return 0;
    case Type::kU8:
    case Type::kS8:
      return 1;
    case Type::kU16:
    case Type::kS16:
    case Type::kF16:
      return 2;
    case Type::kU32:
    case Type::kS32:
    case Type::kF32:
      return 4;
    case Type::kU64:
    case Type::kS64:
    case Type::kF64:
      return 8;
  }
  return 0;
}

}  // namespace lockstep::cuda_emulation::ptx
