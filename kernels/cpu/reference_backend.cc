// ReferenceBackend: what kernels/backend.h says, in the plainest loops that say it. One thread, no
// vectors, no tricks; every other body is tested against this one, bit for bit on the CPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/host_backend.h"
#include "kernels/cpu/linear_shape.h"
#include "kernels/cpu/plain_quantized_weight.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu_backend_options.h"

namespace lockstep {
namespace {

constexpr int kSumLanes = 16;

// ((v0 + v1) + (v2 + v3)) + ...; a missing right neighbour adds nothing.
float NeighbourTree(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> sums;
    for (size_t i = 0; i < values.size(); i += 2) {
      sums.push_back(i + 1 < values.size() ? values[i] + values[i + 1] : values[i]);
    }
    values = std::move(sums);
  }
  return values[0];
}

// Row-major [out_features, in_features], in the dtype of the shape.
class PlainWeight final : public LinearWeight {
 public:
  PlainWeight(const LinearShape& shape, DeviceBuffer buffer)
      : LinearWeight(shape), buffer_(std::move(buffer)) {}
  int64_t bytes() const override { return buffer_.bytes(); }

  float At(int64_t n, int64_t k) const {
    return cpu::HostElement(buffer_.data(), shape().dtype, n * shape().in_features + k);
  }
  void Set(int64_t n, int64_t k, float value) {
    cpu::SetHostElement(buffer_.data(), shape().dtype, n * shape().in_features + k, value);
  }

 private:
  DeviceBuffer buffer_;
};

// One K-slice [k0, k1) of one output element.
float SliceF32(const PlainWeight& weight, int64_t n, const float* x, int64_t k0, int64_t k1) {
  float sum = 0.0f;
  for (int64_t k = k0; k < k1; ++k) sum = std::fma(x[k], weight.At(n, k), sum);
  return sum;
}

// The sum of x(i) * y(i) over 0..count-1 the way bf16 is multiplied: x rounded, in pairs, flushed.
template <typename X, typename Y>
float PairedDot(int64_t count, X x, Y y) {
  const cpu::FlushDenormals flush;
  float sum = 0.0f;
  for (int64_t i = 0; i < count; i += 2) {
    const bool has_odd = i + 1 < count;
    const float x_odd = has_odd ? ToFloat(ToBF16(x(i + 1))) : 0.0f;
    const float y_odd = has_odd ? y(i + 1) : 0.0f;
    sum = std::fma(x_odd, y_odd, sum);
    sum = std::fma(ToFloat(ToBF16(x(i))), y(i), sum);
  }
  return sum;
}

float SliceBF16(const PlainWeight& weight, int64_t n, const float* x, int64_t k0, int64_t k1) {
  return PairedDot(
      k1 - k0, [&](int64_t i) { return x[k0 + i]; },
      [&](int64_t i) { return weight.At(n, k0 + i); });
}

// The state of one split or of several merged ones.
struct SoftmaxState {
  float max = 0.0f;
  float sum = 0.0f;
  std::vector<float> values;

  void Merge(const SoftmaxState& next) {
    const float m = std::max(max, next.max);
    const float a = cpu::Exp(max - m);
    const float b = cpu::Exp(next.max - m);
    max = m;
    sum = std::fma(next.sum, b, sum * a);
    for (size_t d = 0; d < values.size(); ++d) {
      values[d] = std::fma(next.values[d], b, values[d] * a);
    }
  }
};

// Where element d of a head's value, and of its key, lies in the cache (KvCacheView).
int64_t ValueIndex(const KvCacheView& cache, int64_t slot, int64_t head, int64_t d) {
  const int64_t block = slot / cache.block_size * cache.num_kv_heads + head;
  return (block * cache.block_size + slot % cache.block_size) * cache.head_dim + d;
}

int64_t KeyIndex(const KvCacheView& cache, int64_t slot, int64_t head, int64_t d) {
  const int64_t block = slot / cache.block_size * cache.num_kv_heads + head;
  const int64_t first = block * cache.block_size * cache.head_dim;
  const int64_t offset = slot % cache.block_size;
  if (cache.dtype == DType::kF32) return first + d * cache.block_size + offset;
  return first + (d / 2 * cache.block_size + offset) * 2 + d % 2;
}

// One KV head of one sequence: positions become elements of its scattered blocks.
struct CachedHead {
  const KvCacheView& cache;
  const int32_t* block_table;
  int kv_head;

  float KeyAt(int64_t position, int d) const {
    return Element(cache.k, KeyIndex(cache, SlotOf(position), kv_head, d));
  }
  float ValueAt(int64_t position, int d) const {
    return Element(cache.v, ValueIndex(cache, SlotOf(position), kv_head, d));
  }

  int64_t SlotOf(int64_t position) const {
    return int64_t{block_table[position / cache.block_size]} * cache.block_size +
           position % cache.block_size;
  }
  float Element(const void* side, int64_t index) const {
    return cpu::HostElement(side, cache.dtype, index);
  }
};

// The sum of x(i) * cached(i), the latter out of a cache of that dtype.
template <typename X, typename Cached>
float CachedDot(DType dtype, int64_t count, X x, Cached cached) {
  if (dtype == DType::kBF16 || dtype == DType::kE4M3) return PairedDot(count, x, cached);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum = std::fma(x(i), cached(i), sum);
  return sum;
}

SoftmaxState AttendSplit(const CachedHead& head, const float* q, float scale, int64_t begin,
                         int64_t end) {
  const int head_dim = head.cache.head_dim;
  std::vector<float> weights;
  for (int64_t j = begin; j < end; ++j) {
    weights.push_back(CachedDot(
        head.cache.dtype, head_dim, [&](int64_t d) { return q[d] * scale; },
        [&](int64_t d) { return head.KeyAt(j, static_cast<int>(d)); }));
  }
  SoftmaxState state;
  state.max = *std::max_element(weights.begin(), weights.end());
  std::vector<float> lanes(kSumLanes, 0.0f);
  for (size_t j = 0; j < weights.size(); ++j) {
    weights[j] = cpu::Exp(weights[j] - state.max);
    lanes[j % kSumLanes] += weights[j];
  }
  state.sum = NeighbourTree(lanes);
  for (int d = 0; d < head_dim; ++d) {
    state.values.push_back(CachedDot(
        head.cache.dtype, end - begin, [&](int64_t j) { return weights[j]; },
        [&](int64_t j) { return head.ValueAt(begin + j, d); }));
  }
  return state;
}

void AttendToken(const CachedHead& head, const float* q, float scale, int64_t context, float* out) {
  constexpr int kSplit = kAttentionSplit;
  SoftmaxState state;
  for (int64_t begin = 0; begin < context; begin += kSplit) {
    SoftmaxState split =
        AttendSplit(head, q, scale, begin, std::min<int64_t>(begin + kSplit, context));
    if (begin == 0) {
      state = std::move(split);
    } else {
      state.Merge(split);
    }
  }
  const float inverse = 1.0f / (state.sum / head.cache.v_scale);
  for (int d = 0; d < head.cache.head_dim; ++d) out[d] = state.values[d] * inverse;
}

// out = row / sqrt(mean(row^2) + eps) * weight, as RmsNormArgs has it; out may be row.
void NormRow(const float* row, const float* weight, float eps, int64_t count, float* out) {
  std::vector<float> lanes(kSumLanes, 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    lanes[i % kSumLanes] = std::fma(row[i], row[i], lanes[i % kSumLanes]);
  }
  const float mean = NeighbourTree(lanes) / static_cast<float>(count);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t i = 0; i < count; ++i) out[i] = row[i] * scale * weight[i];
}

void AdjustHeads(const HeadAdjustments& adjust, int num_heads, int num_kv_heads, int head_dim,
                 float* qkv) {
  const int num_rows = num_heads + 2 * num_kv_heads;
  for (int h = 0; h < num_rows; ++h) {
    float* const head = qkv + h * head_dim;
    for (int i = 0; adjust.bias != nullptr && i < head_dim; ++i) {
      head[i] += adjust.bias[h * head_dim + i];
    }
    const bool is_value = h >= num_heads + num_kv_heads;
    const float* const norm = h < num_heads ? adjust.q_norm : is_value ? nullptr : adjust.k_norm;
    if (norm != nullptr) NormRow(head, norm, adjust.eps, head_dim, head);
  }
}

void RotateHead(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float first = x[i];
    const float second = x[i + half];
    x[i] = std::fma(first, cos[i], -(second * sin[i]));
    x[i + half] = std::fma(second, cos[i], first * sin[i]);
  }
}

class ReferenceBackend final : public cpu::HostBackend {
 public:
  std::string Description() const override { return "cpu reference, 1 thread"; }

  absl::StatusOr<DeviceBuffer> Allocate(int64_t bytes) override { return cpu::AllocateHost(bytes); }

  absl::StatusOr<std::unique_ptr<LinearWeight>> AllocateLinear(const LinearShape& shape) override {
    RETURN_IF_ERROR(cpu::CheckLinearShape(shape));
    if (shape.quantization != Quantization::kNone) {
      if (shape.out_features * shape.in_features > INT64_MAX / 8 ||
          shape.out_features * shape.in_features > (int64_t{1} << 40)) {
        return absl::ResourceExhaustedError("linear weight: too large");
      }
      return std::make_unique<cpu::PlainQuantizedWeight>(shape);
    }
    const int64_t elements = shape.out_features * shape.in_features;
    if (elements > INT64_MAX / 8) return absl::ResourceExhaustedError("linear weight: too large");
    ASSIGN_OR_RETURN(DeviceBuffer buffer, cpu::AllocateHost(elements * DTypeBytes(shape.dtype)));
    return std::make_unique<PlainWeight>(shape, std::move(buffer));
  }

  std::string WeightLayout() const override { return ""; }
  void PlaceWeights(WeightAllocator) override { LS_CHECK(false) << "weights have no layout"; }
  void FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) override {
    cpu::CheckHostRows(weight.shape(), first_row, rows);
    for (int64_t i = 0; i < rows.num_rows; ++i) {
      const char* row = static_cast<const char*>(rows.data) + i * rows.row_stride_bytes;
      if (weight.shape().quantization != Quantization::kNone) {
        static_cast<cpu::PlainQuantizedWeight&>(weight).FillRow(first_row + i, row, rows);
        continue;
      }
      auto& plain = static_cast<PlainWeight&>(weight);
      for (int64_t k = 0; k < weight.shape().in_features; ++k) {
        plain.Set(first_row + i, k, cpu::HostElement(row, rows.dtype, k));
      }
    }
  }

  void Embed(const EmbedArgs& args) override {
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      const int64_t row = args.ids[t] - args.first_id;
      const bool here = row >= 0 && row < args.num_rows;
      for (int64_t i = 0; i < args.hidden; ++i) {
        const int64_t index = row * args.hidden + i;
        float value = 0.0f;
        if (here) value = cpu::HostElement(args.table, args.table_dtype, index);
        args.out[t * args.hidden + i] = value + 0.0f;
      }
    }
  }

  void AddRmsNorm(const RmsNormArgs& args) override {
    float* const out = static_cast<float*>(args.out) + args.first_out_row * args.hidden;
    const float* const delta = cpu::AsF32(args.delta, args.delta_dtype);
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      float* residual = args.residual + t * args.hidden;
      for (int64_t i = 0; delta != nullptr && i < args.hidden; ++i) {
        residual[i] += delta[t * args.hidden + i];
      }
      NormRow(residual, args.weight, args.eps, args.hidden, out + t * args.hidden);
    }
  }

  void Linear(const LinearWeight& weight, const void* input, int64_t num_tokens,
              float* y) override {
    const float* x = static_cast<const float*>(input);
    const LinearShape& shape = weight.shape();
    const int64_t slice_k = shape.in_features / shape.num_k_slices;
    MultiplyRows(shape, x, num_tokens, y, [&](int64_t n, const float* row, int slice) {
      if (shape.quantization != Quantization::kNone) {
        return static_cast<const cpu::PlainQuantizedWeight&>(weight).Slice(n, row, slice);
      }
      const auto& plain = static_cast<const PlainWeight&>(weight);
      const auto slice_of = shape.dtype == DType::kBF16 ? SliceBF16 : SliceF32;
      return slice_of(plain, n, row, slice * slice_k, (slice + 1) * slice_k);
    });
  }

  void SiluMul(const SiluMulArgs& args) override {
    const float* const gate_up = cpu::AsF32(args.gate_up, args.gate_up_dtype);
    float* const out = static_cast<float*>(args.out);
    const int64_t width = args.width;
    for (int64_t t = 0; t < args.num_tokens; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        const float gate = gate_up[t * 2 * width + i];
        const float up = gate_up[t * 2 * width + width + i];
        out[t * width + i] = gate / (1.0f + cpu::Exp(0.0f - gate)) * up;
      }
    }
  }

  void RopeAndWriteKv(const RopeArgs& args) override {
    const int half = args.cache->head_dim / 2;
    const int num_kv_heads = args.cache->num_kv_heads;
    const int64_t row = int64_t{args.num_heads + 2 * num_kv_heads} * args.cache->head_dim;
    for (int64_t t = 0; t < args.batch->num_tokens; ++t) {
      float* qkv = cpu::AsF32(args.qkv, args.qkv_dtype) + t * row;
      AdjustHeads(args.adjust, args.num_heads, num_kv_heads, args.cache->head_dim, qkv);
      const int64_t position = args.batch->positions[t];
      for (int h = 0; h < args.num_heads + num_kv_heads; ++h) {
        RotateHead(qkv + h * args.cache->head_dim, args.cos + position * half,
                   args.sin + position * half, half);
      }
      const float* k = qkv + args.num_heads * args.cache->head_dim;
      WriteToken(*args.cache, args.batch->slot_mapping[t], k,
                 k + num_kv_heads * args.cache->head_dim);
    }
  }

  void Attention(const AttentionArgs& args) override {
    const int head_dim = args.cache->head_dim;
    const int group = args.num_heads / args.cache->num_kv_heads;
    const int64_t row = int64_t{args.num_heads + 2 * args.cache->num_kv_heads} * head_dim;
    const float* const qkv = cpu::AsF32(args.qkv, args.qkv_dtype);
    for (int64_t s = 0; s < args.batch->num_seqs; ++s) {
      for (int64_t t = args.batch->query_starts[s]; t < args.batch->query_starts[s + 1]; ++t) {
        for (int h = 0; h < args.num_heads; ++h) {
          const CachedHead head{*args.cache, args.batch->BlockTable(s), h / group};
          AttendToken(head, qkv + t * row + h * head_dim, args.scale * args.cache->k_scale,
                      args.batch->positions[t] + int64_t{1},
                      static_cast<float*>(args.out) + (t * args.num_heads + h) * head_dim);
        }
      }
    }
  }

  void Add(float* dst, const void* addends, DType dtype, int64_t count) override {
    const float* const src = cpu::AsF32(addends, dtype);
    for (int64_t i = 0; i < count; ++i) dst[i] += src[i];
  }

 private:
  template <typename Slice>
  static void MultiplyRows(const LinearShape& shape, const float* x, int64_t num_tokens, float* y,
                           Slice slice) {
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t n = 0; n < shape.out_features; ++n) {
        std::vector<float> partial;
        for (int s = 0; s < shape.num_k_slices; ++s) {
          partial.push_back(slice(n, x + t * shape.in_features, s));
        }
        y[t * shape.out_features + n] = NeighbourTree(std::move(partial));
      }
    }
  }

  // k, v: [num_kv_heads, head_dim] of one token.
  static void WriteToken(const KvCacheView& cache, int64_t slot, const float* k, const float* v) {
    const float to_k = 1.0f / cache.k_scale;
    const float to_v = 1.0f / cache.v_scale;
    for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
      for (int64_t d = 0; d < cache.head_dim; ++d) {
        const int64_t from = h * cache.head_dim + d;
        cpu::SetHostElement(cache.k, cache.dtype, KeyIndex(cache, slot, h, d), k[from] * to_k);
        cpu::SetHostElement(cache.v, cache.dtype, ValueIndex(cache, slot, h, d), v[from] * to_v);
      }
    }
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace lockstep
