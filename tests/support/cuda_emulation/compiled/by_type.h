// The function of a template for the type that an instruction names.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tests/support/cuda_emulation/compiled/program.h"

namespace lockstep::cuda_emulation::ptx {

// body(T()) with T of the type; null of others than integers.
template <typename Body>
Execute ForIntegers(Type type, const Body& body) {
  switch (type) {
    case Type::kU16:
      return body(uint16_t{});
    case Type::kS16:
      return body(int16_t{});
    case Type::kU32:
      return body(uint32_t{});
    case Type::kS32:
      return body(int32_t{});
    case Type::kU64:
      return body(uint64_t{});
    case Type::kS64:
      return body(int64_t{});
    default:
      return nullptr;
  }
}
template <typename Body>
Execute ForFloats(Type type, const Body& body) {
  if (type == Type::kF32) return body(float{});
  return type == Type::kF64 ? body(double{}) : nullptr;
}
template <typename Body>
Execute ForNumbers(Type type, const Body& body) {
  const bool is_float = type == Type::kF32 || type == Type::kF64;
  return is_float ? ForFloats(type, body) : ForIntegers(type, body);
}

// What wraps around does so without a sign.
template <typename T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

}  // namespace lockstep::cuda_emulation::ptx
