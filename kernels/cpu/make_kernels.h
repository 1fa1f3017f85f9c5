// The table of a vector policy's kernels.
#pragma once

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/elementwise_kernels.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/pack_activations.h"
#include "kernels/cpu/vector_kernels.h"

namespace lockstep::cpu {
namespace {

template <class V>
constexpr VectorKernels MakeKernels(const char* name, const QuantizedKernels& quantized) {
  static_assert(V::kTileRows <= kMaxTileRows && kPanelColumns<V> <= kMaxPanelColumns &&
                16 % V::kWidth == 0);
  VectorKernels kernels = {};
  kernels.name = name;
  kernels.tile_rows = V::kTileRows;
  kernels.two_panel_rows = kTwoPanelRows<V>;
  kernels.panel_columns = kPanelColumns<V>;
  kernels.pairs_as_bf16 = V::kNativePairs;
  kernels.pack_f32 = PackF32<V>;
  kernels.pack_bf16 = PackBf16<V>;
  kernels.gemm_f32 = Gemm<V, false>;
  kernels.gemm_bf16 = Gemm<V, true>;
  kernels.pack_queries_f32 = PackQueries<V, false>;
  kernels.pack_queries_bf16 = PackQueries<V, true>;
  kernels.attend_split = AttendSplit<V>;
  kernels.merge_softmax = MergeSoftmax<V>;
  kernels.normalise = Normalise<V>;
  kernels.add_rms_norm = AddRmsNorm<V>;
  kernels.silu_mul = SiluMul<V>;
  kernels.rotate = Rotate<V>;
  kernels.add = AddInto<V>;
  kernels.widen_bf16 = WidenBf16<V>;
  kernels.round_bf16 = RoundBf16<V>;
  kernels.widen_e4m3 = WidenE4m3<V>;
  kernels.quantized = &quantized;
  return kernels;
}

}  // namespace
}  // namespace lockstep::cpu
