// A vector of kLanes floats as a plain array: the policy that runs anywhere, and the one with which
// the tests run the 16-lane code on a processor without AVX-512.
//
// A policy is what the kernels (gemm_kernels.h, ...) know of an instruction set. kNativePairs
// stands for a bf16 dot product instruction: Fma of the odd, then of the even elements of pairs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/flush_denormals.h"

namespace lockstep::cpu {
namespace {

template <int kLanes, int kRows, bool kPairs>
struct PortableVector {
  static constexpr int kWidth = kLanes;
  static constexpr int kTileRows = kRows;
  static constexpr bool kNativePairs = kPairs;
  struct F {
    float lane[kLanes];
  };
  using Pairs = F;  // the bits of two bf16 in each lane

  template <typename Lane>
  static F Make(Lane value) {
    F out;
    for (int i = 0; i < kLanes; ++i) out.lane[i] = value(i);
    return out;
  }
  static float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }
  static uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

  static F Zero() { return Set(0.0f); }
  static F Set(float x) {
    return Make([=](int) { return x; });
  }
  static F Load(const float* p) {
    return Make([=](int i) { return p[i]; });
  }
  static F LoadFirst(const float* p, int n) {
    return Make([=](int i) { return i < n ? p[i] : 0.0f; });
  }
  static void Store(float* p, F v) {
    for (int i = 0; i < kLanes; ++i) p[i] = v.lane[i];
  }
  static void StoreFirst(float* p, F v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v.lane[i];
  }
  static F LoadBf16(const uint16_t* p) {
    return Make([=](int i) { return FromBits(uint32_t{p[i]} << 16); });
  }
  static F LoadFirstBf16(const uint16_t* p, int n) {
    return Make([=](int i) { return i < n ? FromBits(uint32_t{p[i]} << 16) : 0.0f; });
  }
  // The first kE4m3Step numbers of e4m3 as bf16: the same mantissa, an exponent counted from 127
  // instead of 7; below 8 multiples of 2^-9; NaN stays NaN.
  static constexpr int kE4m3Step = kLanes;
  static void WidenE4m3(const uint8_t* src, uint16_t* dst) {
    for (int i = 0; i < kE4m3Step; ++i) {
      const uint32_t magnitude = src[i] & 0x7fu;
      const uint32_t multiple = Bits(static_cast<float>(magnitude) * 0x1p-9f) >> 16;
      uint32_t wide = magnitude < 8 ? multiple : (magnitude << 4) + (120u << 7);
      if (magnitude == 0x7f) wide = 0x7fff;
      dst[i] = static_cast<uint16_t>(wide | (src[i] & 0x80u) << 8);
    }
  }
  // Rounded to nearest even, as the bits of a bf16 in the upper half of each lane.
  static F RoundToBf16(F v) {
    return Make([&](int i) {
      const uint32_t bits = Bits(v.lane[i]);
      if ((bits & 0x7fffffffu) > 0x7f800000u) return FromBits((bits & 0xffff0000u) | 0x00400000u);
      return FromBits((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
    });
  }

  static F Add(F a, F b) {
    return Make([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F Sub(F a, F b) {
    return Make([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F Mul(F a, F b) {
    return Make([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F Div(F a, F b) {
    return Make([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F Max(F a, F b) {
    return Make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F Fma(F a, F b, F c) {
    return Make([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static F Negate(F a) {
    return Make([&](int i) { return -a.lane[i]; });
  }
  static F Sqrt(F a) {
    return Make([&](int i) { return std::sqrt(a.lane[i]); });
  }
  // a < b ? yes : no
  static F SelectLess(F a, F b, F yes, F no) {
    return Make([&](int i) { return a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  static F SelectNan(F a, F yes, F no) {
    return Make([&](int i) { return a.lane[i] != a.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  // bits(p) + (bits(shifted) << 23)
  static F ScaleByPowerOfTwo(F p, F shifted) {
    return Make([&](int i) { return FromBits(Bits(p.lane[i]) + (Bits(shifted.lane[i]) << 23)); });
  }

  static Pairs LoadPairs(const uint32_t* p) {
    return Make([=](int i) { return FromBits(p[i]); });
  }
  static Pairs SetPair(uint32_t pair) { return Set(FromBits(pair)); }
  // The pairs that RoundToBf16 left in two consecutive vectors.
  static Pairs JoinPairs(F a, F b) {
    return Make([&](int i) {
      const F& from = i < kLanes / 2 ? a : b;
      const int at = 2 * i % kLanes;
      return FromBits(Bits(from.lane[at]) >> 16 | Bits(from.lane[at + 1]));
    });
  }
  // The pairs that RoundToBf16 left in two vectors of lanes, of these and those.
  static Pairs PairUp(F even, F odd) {
    return Make([&](int i) { return FromBits(Bits(even.lane[i]) >> 16 | Bits(odd.lane[i])); });
  }
  // JoinPairs of both, rounded; of numbers that are not denormal.
  static Pairs RoundToPairs(F a, F b) { return JoinPairs(RoundToBf16(a), RoundToBf16(b)); }
  // Two rows of 2 kLanes bf16 -> pairs of one from each; sums over these are in an order that
  // UnzipSums puts right.
  static void ZipRows(Pairs& first, Pairs& second) {
    const auto element = [a = first, b = second](int i) {
      const int shift = i % 2 * 16;
      const uint32_t low = Bits(a.lane[i / 2]) >> shift & 0xffffu;
      return FromBits(low | (Bits(b.lane[i / 2]) >> shift) << 16);
    };
    first = Make(element);
    second = Make([&](int i) { return element(i + kLanes); });
  }
  static void UnzipSums(F&, F&) {}
  static F AsLanes(Pairs v) { return v; }
  static F OddOf(Pairs v) {
    return Make([&](int i) { return FromBits(Bits(v.lane[i]) & 0xffff0000u); });
  }
  static F EvenOf(Pairs v) {
    return Make([&](int i) { return FromBits(Bits(v.lane[i]) << 16); });
  }
  static F DotPairs(F sum, Pairs a, Pairs b) {
    const FlushDenormals flush;  // std::fma is a call
    return Fma(EvenOf(a), EvenOf(b), Fma(OddOf(a), OddOf(b), sum));
  }

  // even, odd elements -> the elements in order
  static void Interleave(F& even, F& odd) {
    const auto element = [a = even, b = odd](int i) {
      return i % 2 == 0 ? a.lane[i / 2] : b.lane[i / 2];
    };
    even = Make(element);
    odd = Make([&](int i) { return element(i + kLanes); });
  }
  // ((l0 + l1) + (l2 + l3)) + ...
  static float TreeSum(F v) {
    for (int count = kLanes / 2; count > 0; count /= 2) {
      for (int i = 0; i < count; ++i) v.lane[i] = v.lane[2 * i] + v.lane[2 * i + 1];
    }
    return v.lane[0];
  }
  static float TreeMax(F v) {
    for (int count = kLanes / 2; count > 0; count /= 2) {
      for (int i = 0; i < count; ++i) {
        v.lane[i] = v.lane[i] > v.lane[i + count] ? v.lane[i] : v.lane[i + count];
      }
    }
    return v.lane[0];
  }

  static void Transpose(F (&rows)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const float kept = rows[i].lane[j];
        rows[i].lane[j] = rows[j].lane[i];
        rows[j].lane[i] = kept;
      }
    }
  }
  static void FmaInto(F& sum, F a, F b) { sum = Fma(a, b, sum); }
  static void Pin(F& v) { asm volatile("" : "+m"(v)); }
  [[gnu::always_inline]] static void PrefetchNear(const char* p) { __builtin_prefetch(p); }
  [[gnu::always_inline]] static void PrefetchFar(const char* p) { __builtin_prefetch(p, 0, 2); }
};

}  // namespace
}  // namespace lockstep::cpu
