// Instructions that move and convert.
// Source: PTX ISA, "mov", "cvt", "cvta".
#include <cmath>
#include <limits>

#include <device_instructions.cuh>
#include <hopper_instructions.cuh>

#include "tests/support/cuda_emulation/compiled/opcode.h"
#include "tests/support/cuda_emulation/compiled/thread.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

template <typename T>
void Move(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], t.Get<T>(i.r[1]));
}
// Of a variable, perhaps.
void MoveAddress(Thread& t, const Instruction& i) {
  t.Set<uint64_t>(i.r[0], t.Get<uint64_t>(i.r[1]) + static_cast<uint64_t>(i.offsets[1]));
}
void MovePredicate(Thread& t, const Instruction& i) {
  t.SetTrue(i.r[0], t.Get<uint32_t>(i.r[1]) != 0);
}
void ReadClock(Thread& t, const Instruction& i) {
  t.Set<uint64_t>(i.r[0], static_cast<uint64_t>(cuda::ClockCycles()));
}

// One register's bits from several shorter ones, the first lowest, or into them.
void Join(Thread& t, const Instruction& i) {
  const int bits = 8 * BytesOf(i.type) / static_cast<int>(i.list.size());
  uint64_t joined = 0;
  for (size_t k = 0; k < i.list.size(); ++k) {
    const uint64_t part = t.Get<uint32_t>(i.list[k]) & ((uint64_t{1} << bits) - 1);
    joined |= part << (bits * static_cast<int>(k));
  }
  if (BytesOf(i.type) == 8) return t.Set<uint64_t>(i.r[0], joined);
  t.Set<uint32_t>(i.r[0], static_cast<uint32_t>(joined));
}
void Part(Thread& t, const Instruction& i) {
  const int bits = 8 * BytesOf(i.type) / static_cast<int>(i.list.size());
  const uint64_t whole =
      BytesOf(i.type) == 8 ? t.Get<uint64_t>(i.r[0]) : uint64_t{t.Get<uint32_t>(i.r[0])};
  for (size_t k = 0; k < i.list.size(); ++k) {
    const uint64_t part = whole >> (bits * static_cast<int>(k)) & ((uint64_t{1} << bits) - 1);
    t.Set<uint32_t>(i.list[k], static_cast<uint32_t>(part));
  }
}

Execute FindMove(Instruction& i) {
  if (i.reads_clock) return &ReadClock;
  if (!i.list.empty()) {
    if (i.num_r != 1 || i.is_wide) return nullptr;
    return i.begins_with_list ? &Part : &Join;
  }
  if (i.type == Type::kPredicate) return &MovePredicate;
  switch (BytesOf(i.type)) {
    case 2:
      return &Move<uint16_t>;
    case 4:
      return i.offsets[1] == 0 ? &Move<uint32_t> : nullptr;
    case 8:
      return &MoveAddress;
    default:
      return nullptr;
  }
}

// ---- numbers of one kind into another ----

enum Rounding : uint8_t { kNearest, kToZero, kRoundDown, kRoundUp };

double RoundToInteger(double x, uint8_t rounding) {
  switch (rounding) {
    case kToZero:
      return std::trunc(x);
    case kRoundDown:
      return std::floor(x);
    case kRoundUp:
      return std::ceil(x);
    default:
      return std::nearbyint(x);
  }
}

// Beyond what To can hold its end; of none 0.
template <typename To>
To ClampToInteger(double x) {
  if (std::isnan(x)) return 0;
  if (x <= static_cast<double>(std::numeric_limits<To>::min())) {
    return std::numeric_limits<To>::min();
  }
  if (x >= static_cast<double>(std::numeric_limits<To>::max())) {
    return std::numeric_limits<To>::max();
  }
  return static_cast<To>(x);
}

template <typename To, typename From>
void Convert(Thread& t, const Instruction& i) {
  const From from = t.Get<From>(i.r[1]);
  To to;
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    to = ClampToInteger<To>(RoundToInteger(from, i.mode));
  } else if constexpr (std::is_floating_point_v<From>) {
    to = static_cast<To>(from);
    if (i.saturates) to = from > 0 ? (from < 1 ? to : To{1}) : To{0};
  } else {
    to = static_cast<To>(from);
  }
  if constexpr (sizeof(To) < sizeof(uint32_t)) {  // registers may be longer
    using Word = std::conditional_t<std::is_signed_v<To>, int32_t, uint32_t>;
    return t.Set<Word>(i.r[0], to);
  } else {
    t.Set<To>(i.r[0], to);
  }
}

template <typename To>
Execute ConvertFrom(Type from) {
  switch (from) {
    case Type::kU8:
      return &Convert<To, uint8_t>;
    case Type::kS8:
      return &Convert<To, int8_t>;
    case Type::kU16:
      return &Convert<To, uint16_t>;
    case Type::kS16:
      return &Convert<To, int16_t>;
    case Type::kU32:
      return &Convert<To, uint32_t>;
    case Type::kS32:
      return &Convert<To, int32_t>;
    case Type::kU64:
      return &Convert<To, uint64_t>;
    case Type::kS64:
      return &Convert<To, int64_t>;
    case Type::kF32:
      return &Convert<To, float>;
    case Type::kF64:
      return &Convert<To, double>;
    default:
      return nullptr;
  }
}

void WidenF16(Thread& t, const Instruction& i) {
  t.Set<float>(i.r[0], ToFloat(F16{t.Get<uint16_t>(i.r[1])}));
}
// The first operand becomes the upper half.
template <typename T>
void PackPair(Thread& t, const Instruction& i) {
  t.Set<uint32_t>(i.r[0], cuda::Pack<T>(t.Get<float>(i.r[2]), t.Get<float>(i.r[1])));
}
void PackE4m3Pair(Thread& t, const Instruction& i) {
  t.Set<uint16_t>(i.r[0], cuda::PackE4m3(t.Get<float>(i.r[2]), t.Get<float>(i.r[1])));
}

Execute FindNumberConversion(const Opcode& opcode, Instruction& i) {
  if (opcode.Has("e4m3x2")) {
    return opcode.Has("satfinite") && opcode.Has("rn") && i.num_r == 3 ? &PackE4m3Pair : nullptr;
  }
  if (opcode.Has("bf16x2")) return opcode.Has("rn") && i.num_r == 3 ? &PackPair<BF16> : nullptr;
  if (opcode.Has("f16x2")) return opcode.Has("rn") && i.num_r == 3 ? &PackPair<F16> : nullptr;
  if (opcode.types.size() != 2) return nullptr;
  if (i.type == Type::kF32 && i.from == Type::kF16) return &WidenF16;
  i.saturates = opcode.Has("sat");
  i.mode = opcode.Has("rzi")   ? kToZero
           : opcode.Has("rmi") ? kRoundDown
           : opcode.Has("rpi") ? kRoundUp
                               : kNearest;
  for (const char* other : {"rz", "rm", "rp", "rna"}) {
    if (opcode.Has(other)) return nullptr;
  }
  switch (i.type) {
    case Type::kU8:
      return ConvertFrom<uint8_t>(i.from);
    case Type::kS8:
      return ConvertFrom<int8_t>(i.from);
    case Type::kU16:
      return ConvertFrom<uint16_t>(i.from);
    case Type::kS16:
      return ConvertFrom<int16_t>(i.from);
    case Type::kU32:
      return ConvertFrom<uint32_t>(i.from);
    case Type::kS32:
      return ConvertFrom<int32_t>(i.from);
    case Type::kU64:
      return ConvertFrom<uint64_t>(i.from);
    case Type::kS64:
      return ConvertFrom<int64_t>(i.from);
    case Type::kF32:
      return ConvertFrom<float>(i.from);
    case Type::kF64:
      return ConvertFrom<double>(i.from);
    default:
      return nullptr;
  }
}

// ---- addresses ----

void ToShared(Thread& t, const Instruction& i) {
  t.Set<uint64_t>(i.r[0], t.SharedAddressOf(t.Get<uint64_t>(i.r[1]), i.site));
}
void FromShared(Thread& t, const Instruction& i) {
  const char* pointer = t.SharedPointer(t.Get<uint64_t>(i.r[1]), 0, i.site);
  t.Set<uint64_t>(i.r[0], reinterpret_cast<uint64_t>(pointer));
}

Execute FindAddressConversion(const Opcode& opcode, const Instruction& i) {
  if (i.type != Type::kU64) return nullptr;
  if (!opcode.Has("shared")) return &MoveAddress;  // other spaces are named by pointers
  return opcode.Has("to") ? &ToShared : &FromShared;
}

}  // namespace

Execute FindConversion(const Opcode& opcode, Instruction& i) {
  if (opcode.name == "mov") return FindMove(i);
  if (opcode.name == "cvt") return FindNumberConversion(opcode, i);
  if (opcode.name == "cvta") return FindAddressConversion(opcode, i);
  return nullptr;
}

}  // namespace lockstep::cuda_emulation::ptx
