// Instructions on bits and predicates: logic, shifts, comparisons, choices.
// Source: PTX ISA, "Logic and Shift Instructions", "Comparison and Select Instructions", "prmt",
// "bfi", "popc", "clz".
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "tests/support/cuda_emulation/compiled/by_type.h"
#include "tests/support/cuda_emulation/compiled/opcode.h"
#include "tests/support/cuda_emulation/compiled/thread.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};

template <typename T, typename F>
void Combine(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], F()(t.Get<T>(i.r[1]), t.Get<T>(i.r[2])));
}
// A predicate is 0 or 1 in a word.
template <typename F>
Execute CombineOf(Type type) {
  if (type == Type::kPredicate) return &Combine<uint32_t, F>;
  return ForIntegers(type, [](auto t) -> Execute { return &Combine<decltype(t), F>; });
}
template <typename T>
void Invert(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], static_cast<T>(~t.Get<T>(i.r[1])));
}
void NotPredicate(Thread& t, const Instruction& i) { t.SetTrue(i.r[0], !t.IsTrue(i.r[1])); }

// ---- bits ----

template <typename T>
void ShiftLeft(Thread& t, const Instruction& i) {
  const auto by = t.Get<uint32_t>(i.r[2]);
  const auto value = static_cast<Wrapping<T>>(t.Get<T>(i.r[1]));
  t.Set<T>(i.r[0], by >= 8 * sizeof(T) ? T{0} : static_cast<T>(value << by));
}
template <typename T>
void ShiftRight(Thread& t, const Instruction& i) {
  const uint32_t by = std::min<uint32_t>(t.Get<uint32_t>(i.r[2]), 8 * sizeof(T));
  const T value = t.Get<T>(i.r[1]);
  const bool all = by == 8 * sizeof(T);
  t.Set<T>(i.r[0], static_cast<T>(all ? (value < 0 ? -1 : 0) : value >> by));
}
// Which of the eight bytes of two words, by four bits each; the fourth repeats its sign.
void Permute(Thread& t, const Instruction& i) {
  const uint64_t bytes = t.Get<uint32_t>(i.r[1]) | uint64_t{t.Get<uint32_t>(i.r[2])} << 32;
  const auto selector = t.Get<uint32_t>(i.r[3]);
  uint32_t result = 0;
  for (int b = 0; b < 4; ++b) {
    const uint32_t select = selector >> (4 * b) & 0xf;
    auto byte = static_cast<uint8_t>(bytes >> 8 * (select & 7));
    if ((select & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= uint32_t{byte} << 8 * b;
  }
  t.Set<uint32_t>(i.r[0], result);
}
template <typename T>
void InsertBits(Thread& t, const Instruction& i) {
  const uint32_t at = t.Get<uint32_t>(i.r[3]) & 0xff;
  const uint32_t length = t.Get<uint32_t>(i.r[4]) & 0xff;
  T mask = 0;
  for (uint32_t bit = at; bit < at + length && bit < 8 * sizeof(T); ++bit) mask |= T{1} << bit;
  const T inserted = at < 8 * sizeof(T) ? t.Get<T>(i.r[1]) << at : 0;
  t.Set<T>(i.r[0], (t.Get<T>(i.r[2]) & ~mask) | (inserted & mask));
}
template <typename T>
void CountOnes(Thread& t, const Instruction& i) {
  t.Set<uint32_t>(i.r[0], static_cast<uint32_t>(std::popcount(t.Get<T>(i.r[1]))));
}
template <typename T>
void CountLeadingZeros(Thread& t, const Instruction& i) {
  t.Set<uint32_t>(i.r[0], static_cast<uint32_t>(std::countl_zero(t.Get<T>(i.r[1]))));
}

// ---- comparisons ----

enum Comparison : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kUnordered = 8,  // is true, too, where one is no number
  kIsNumber = 16,
  kIsNone = 32
};
constexpr std::pair<absl::string_view, uint8_t> kComparisons[] = {{"eq", kEq},
                                                                  {"ne", kNe},
                                                                  {"lt", kLt},
                                                                  {"le", kLe},
                                                                  {"gt", kGt},
                                                                  {"ge", kGe},
                                                                  {"lo", kLt},
                                                                  {"ls", kLe},
                                                                  {"hi", kGt},
                                                                  {"hs", kGe},
                                                                  {"num", kIsNumber},
                                                                  {"nan", kIsNone},
                                                                  {"equ", kEq | kUnordered},
                                                                  {"neu", kNe | kUnordered},
                                                                  {"ltu", kLt | kUnordered},
                                                                  {"leu", kLe | kUnordered},
                                                                  {"gtu", kGt | kUnordered},
                                                                  {"geu", kGe | kUnordered}};

template <typename T>
bool Compare(uint8_t mode, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool has_none = std::isnan(a) || std::isnan(b);
    if (mode == kIsNumber || mode == kIsNone) return has_none == (mode == kIsNone);
    if (has_none) return (mode & kUnordered) != 0;
  }
  switch (mode & 7) {
    case kEq:
      return a == b;
    case kNe:
      return a != b;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    default:
      return a >= b;
  }
}
// r: p, q (its opposite), a, b
template <typename T>
void SetPredicate(Thread& t, const Instruction& i) {
  const bool is_so = Compare(i.mode, t.Get<T>(i.r[2]), t.Get<T>(i.r[3]));
  t.SetTrue(i.r[0], is_so);
  t.SetTrue(i.r[1], !is_so);
}
template <typename T>
void Select(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], t.Get<T>(t.IsTrue(i.r[3]) ? i.r[1] : i.r[2]));
}

Execute SelectOf(Type type) {
  switch (BytesOf(type)) {
    case 2:
      return &Select<uint16_t>;
    case 4:
      return &Select<uint32_t>;
    case 8:
      return &Select<uint64_t>;
    default:
      return nullptr;
  }
}
Execute SetPredicateOf(const Opcode& opcode, Instruction& i) {
  for (const auto& [name, mode] : kComparisons) {
    if (opcode.parts.front() != name || opcode.parts.size() != 2 || i.num_r != 4) continue;
    i.mode = mode;
    return ForNumbers(i.type, [](auto t) -> Execute { return &SetPredicate<decltype(t)>; });
  }
  return nullptr;
}
Execute InvertOf(Type type) {
  if (type == Type::kPredicate) return &NotPredicate;
  return ForIntegers(type, [](auto t) -> Execute { return &Invert<decltype(t)>; });
}

}  // namespace

Execute FindBits(const Opcode& opcode, Instruction& i) {
  const std::string& name = opcode.name;
  const bool is_long = BytesOf(i.type) == 8;
  if (name == "and") return CombineOf<And>(i.type);
  if (name == "or") return CombineOf<Or>(i.type);
  if (name == "xor") return CombineOf<Xor>(i.type);
  if (name == "not") return InvertOf(i.type);
  if (name == "shl") {
    return ForIntegers(i.type, [](auto t) -> Execute { return &ShiftLeft<decltype(t)>; });
  }
  if (name == "shr") {
    return ForIntegers(i.type, [](auto t) -> Execute { return &ShiftRight<decltype(t)>; });
  }
  if (name == "prmt" && opcode.parts.size() == 1) return &Permute;
  if (name == "bfi") return is_long ? &InsertBits<uint64_t> : &InsertBits<uint32_t>;
  if (name == "popc") return is_long ? &CountOnes<uint64_t> : &CountOnes<uint32_t>;
  if (name == "clz") return is_long ? &CountLeadingZeros<uint64_t> : &CountLeadingZeros<uint32_t>;
  if (name == "setp") return SetPredicateOf(opcode, i);
  return name == "selp" ? SelectOf(i.type) : nullptr;
}

}  // namespace lockstep::cuda_emulation::ptx
