// Instructions that compute with numbers.
// Source: PTX ISA, "Integer Arithmetic Instructions", "Floating Point Instructions".
#include <cfenv>
#include <cmath>
#include <limits>
#include <type_traits>

#include <device_instructions.cuh>

#include "tests/support/cuda_emulation/compiled/by_type.h"
#include "tests/support/cuda_emulation/compiled/opcode.h"
#include "tests/support/cuda_emulation/compiled/thread.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

struct Add {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Subtract {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
  }
};
struct Multiply {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (sizeof(T) < sizeof(int))
      return static_cast<T>(static_cast<unsigned>(a) * static_cast<unsigned>(b));
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
struct MultiplyHigh {
  template <typename T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>(Wide{a} * Wide{b} >> (8 * sizeof(T)));
  }
};
struct Divide {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract()(T{0}, a);
    }
    return a / b;
  }
};
struct Remainder {
  template <typename T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return a % b;
  }
};
// Of a number and none, the number.
struct Least {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    return a < b ? a : b;
  }
};
struct Largest {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    return a > b ? a : b;
  }
};
struct Negate {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) return -a;
    return Subtract()(T{0}, a);
  }
};
struct Absolute {
  template <typename T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
    return a < T{0} ? Negate()(a) : a;
  }
};
struct Root {
  template <typename T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct Inverse {
  template <typename T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct InverseRoot {
  template <typename T>
  T operator()(T a) const {
    return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a)));
  }
};
struct PowerOfTwo {
  template <typename T>
  T operator()(T a) const {
    return std::exp2(a);
  }
};
struct LogOfTwo {
  template <typename T>
  T operator()(T a) const {
    return std::log2(a);
  }
};

template <typename T, typename F>
void Unary(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], F()(t.Get<T>(i.r[1])));
}
template <typename T, typename F>
void Binary(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], F()(t.Get<T>(i.r[1]), t.Get<T>(i.r[2])));
}

template <typename F>
Execute BinaryOf(Type type) {
  return ForNumbers(type, [](auto t) -> Execute { return &Binary<decltype(t), F>; });
}
template <typename F>
Execute BinaryOfIntegers(Type type) {
  return ForIntegers(type, [](auto t) -> Execute { return &Binary<decltype(t), F>; });
}
template <typename F>
Execute UnaryOf(Type type) {
  return ForNumbers(type, [](auto t) -> Execute { return &Unary<decltype(t), F>; });
}
template <typename F>
Execute UnaryOfFloats(Type type) {
  return ForFloats(type, [](auto t) -> Execute { return &Unary<decltype(t), F>; });
}

// ---- three operands ----

template <typename T>
void MultiplyAndAdd(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], Add()(Multiply()(t.Get<T>(i.r[1]), t.Get<T>(i.r[2])), t.Get<T>(i.r[3])));
}
template <typename T>
void FusedMultiplyAdd(Thread& t, const Instruction& i) {
  t.Set<T>(i.r[0], std::fma(t.Get<T>(i.r[1]), t.Get<T>(i.r[2]), t.Get<T>(i.r[3])));
}
void FusedMultiplyAddDown(Thread& t, const Instruction& i) {
  const volatile float a = t.Get<float>(i.r[1]);
  const int rounding = std::fegetround();
  std::fesetround(FE_DOWNWARD);
  const volatile float result = std::fma(a, t.Get<float>(i.r[2]), t.Get<float>(i.r[3]));
  std::fesetround(rounding);
  t.Set<float>(i.r[0], result);
}
template <typename T>
void FusedMultiplyAddPair(Thread& t, const Instruction& i) {
  const auto element = [&](int r, int shift) {
    return ToFloat(T{static_cast<uint16_t>(t.Get<uint32_t>(i.r[r]) >> shift)});
  };
  const auto fused = [&](int shift) {
    return std::fma(element(1, shift), element(2, shift), element(3, shift));
  };
  t.Set<uint32_t>(i.r[0], cuda::Pack<T>(fused(0), fused(16)));
}
template <typename Narrow, typename Wide>
void MultiplyWide(Thread& t, const Instruction& i) {
  const Wide product = Wide{t.Get<Narrow>(i.r[1])} * Wide{t.Get<Narrow>(i.r[2])};
  t.Set<Wide>(i.r[0], product);
}
template <typename Narrow, typename Wide>
void MultiplyWideAndAdd(Thread& t, const Instruction& i) {
  const Wide product = Wide{t.Get<Narrow>(i.r[1])} * Wide{t.Get<Narrow>(i.r[2])};
  t.Set<Wide>(i.r[0], Add()(product, t.Get<Wide>(i.r[3])));
}

Execute MultiplyOf(const Opcode& opcode, Type type) {
  if (opcode.Has("wide")) {
    if (type == Type::kU32) return &MultiplyWide<uint32_t, uint64_t>;
    if (type == Type::kS32) return &MultiplyWide<int32_t, int64_t>;
    if (type == Type::kU16) return &MultiplyWide<uint16_t, uint32_t>;
    return type == Type::kS16 ? &MultiplyWide<int16_t, int32_t> : nullptr;
  }
  return opcode.Has("hi") ? BinaryOfIntegers<MultiplyHigh>(type) : BinaryOf<Multiply>(type);
}
Execute FusedOf(Type type) {
  return ForFloats(type, [](auto t) -> Execute { return &FusedMultiplyAdd<decltype(t)>; });
}
Execute MultiplyAndAddOf(const Opcode& opcode, Type type) {
  if (opcode.Has("wide")) {
    if (type == Type::kU32) return &MultiplyWideAndAdd<uint32_t, uint64_t>;
    return type == Type::kS32 ? &MultiplyWideAndAdd<int32_t, int64_t> : nullptr;
  }
  if (!opcode.Has("lo")) return FusedOf(type);
  return ForIntegers(type, [](auto t) -> Execute { return &MultiplyAndAdd<decltype(t)>; });
}
Execute FusedMultiplyAddOf(const Opcode& opcode, Type type) {
  if (opcode.Has("bf16x2")) return &FusedMultiplyAddPair<BF16>;
  if (opcode.Has("f16x2")) return &FusedMultiplyAddPair<F16>;
  if (opcode.Has("rm") && type == Type::kF32) return &FusedMultiplyAddDown;
  return opcode.Has("rn") ? FusedOf(type) : nullptr;
}

}  // namespace

Execute FindArithmetic(const Opcode& opcode, Instruction& i) {
  const std::string& name = opcode.name;
  const Type type = i.type;
  if (name == "add") return BinaryOf<Add>(type);
  if (name == "sub") return BinaryOf<Subtract>(type);
  if (name == "mul") return MultiplyOf(opcode, type);
  if (name == "mad") return MultiplyAndAddOf(opcode, type);
  if (name == "fma") return FusedMultiplyAddOf(opcode, type);
  if (name == "div") return BinaryOf<Divide>(type);
  if (name == "rem") return BinaryOfIntegers<Remainder>(type);
  if (name == "min") return BinaryOf<Least>(type);
  if (name == "max") return BinaryOf<Largest>(type);
  if (name == "neg") return UnaryOf<Negate>(type);
  if (name == "abs") return UnaryOf<Absolute>(type);
  if (name == "sqrt") return UnaryOfFloats<Root>(type);
  if (name == "rcp") return UnaryOfFloats<Inverse>(type);
  if (name == "rsqrt") return UnaryOfFloats<InverseRoot>(type);
  if (name == "ex2") return UnaryOfFloats<PowerOfTwo>(type);
  if (name == "lg2") return UnaryOfFloats<LogOfTwo>(type);
  return nullptr;
}

}  // namespace lockstep::cuda_emulation::ptx
