#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/products.h"
#include "kernels/cpu_backend_options.h"
#include "kernels/host_rows.h"

namespace lockstep {
namespace cpu {
namespace {

constexpr int kMaxThreads = 1024;
// Elements of a row-wise kernel that are worth another thread's attention (a few microseconds of
// work).
constexpr int64_t kGrain = 4096;

int64_t RowsPerGrain(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
}

}  // namespace

CpuBackend::CpuBackend(const VectorKernels& kernels, int num_threads)
    : kernels_(kernels),
      pool_(num_threads),
      linear_(kernels, pool_),
      quantized_(kernels, pool_),
      attention_(kernels, pool_) {}

std::string CpuBackend::Description() const {
  const int threads = pool_.num_threads();
  return absl::StrCat("cpu ", kernels_.name, ", ", threads, threads == 1 ? " thread" : " threads");
}

absl::StatusOr<DeviceBuffer> CpuBackend::Allocate(int64_t bytes) { return allocator_(bytes); }

absl::StatusOr<std::unique_ptr<LinearWeight>> CpuBackend::AllocateLinear(const LinearShape& shape) {
  if (shape.quantization != Quantization::kNone) {
    return QuantizedWeight::Allocate(shape, kernels_, allocator_);
  }
  return PackedWeight::Allocate(shape, kernels_.panel_columns, allocator_);
}

void CpuBackend::FillLinear(LinearWeight& weight, int64_t first_row, const HostRows& rows) {
  if (weight.shape().quantization != Quantization::kNone) {
    static_cast<QuantizedWeight&>(weight).Fill(first_row, rows);
  } else {
    static_cast<PackedWeight&>(weight).Fill(first_row, rows);
  }
}

std::string CpuBackend::WeightLayout() const {
  return absl::StrCat("cpu ", kPackedLayoutVersion, ", panels of ", kernels_.panel_columns,
                      ", quantized panels of ", kQuantizedColumns);
}

void CpuBackend::PlaceWeights(WeightAllocator allocator) {
  allocator_ = allocator == nullptr ? AllocateHost : std::move(allocator);
}

template <typename Body>
void CpuBackend::ForRanges(int64_t count, int64_t grain, Body&& body) {
  const int64_t num_pieces = (count + grain - 1) / grain;
  pool_.ParallelFor(num_pieces, [&](int64_t piece, int) {
    body(piece * grain, std::min(count, (piece + 1) * grain));
  });
}

void CpuBackend::Embed(const EmbedArgs& args) {
  ForRanges(args.num_tokens, RowsPerGrain(args.hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = args.out + t * args.hidden;
      const int64_t row = args.ids[t] - args.first_id;
      if (row < 0 || row >= args.num_rows) {
        std::fill_n(out, args.hidden, 0.0f);
      } else if (args.table_dtype == DType::kF32) {
        std::copy_n(static_cast<const float*>(args.table) + row * args.hidden, args.hidden, out);
      } else {
        LS_CHECK(args.table_dtype == DType::kBF16) << DTypeName(args.table_dtype);
        kernels_.widen_bf16(static_cast<const uint16_t*>(args.table) + row * args.hidden,
                            args.hidden, out);
      }
      for (int64_t i = 0; i < args.hidden; ++i) out[i] += 0.0f;  // -0 + 0 = 0
    }
  });
}

void CpuBackend::AddRmsNorm(const RmsNormArgs& args) {
  float* const out = static_cast<float*>(args.out) + args.first_out_row * args.hidden;
  const float* const deltas = AsF32(args.delta, args.delta_dtype);
  ForRanges(args.num_tokens, RowsPerGrain(args.hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t at = t * args.hidden;
      const float* delta = deltas == nullptr ? nullptr : deltas + at;
      kernels_.add_rms_norm(args.residual + at, delta, args.weight, args.eps, args.hidden,
                            out + at);
    }
  });
}

void CpuBackend::Linear(const LinearWeight& weight, const void* input, int64_t num_tokens,
                        float* y) {
  const float* x = static_cast<const float*>(input);
  if (weight.shape().quantization != Quantization::kNone) {
    quantized_.Run(static_cast<const QuantizedWeight&>(weight), x, num_tokens, y);
  } else {
    linear_.Run(static_cast<const PackedWeight&>(weight), x, num_tokens, y);
  }
}

void CpuBackend::SiluMul(const SiluMulArgs& args) {
  const float* const gate_up = AsF32(args.gate_up, args.gate_up_dtype);
  float* const out = static_cast<float*>(args.out);
  const int64_t width = args.width;
  // Elements, not rows, are shared out: a decode step has few rows and wide ones.
  ForRanges(args.num_tokens * width, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t token = begin / width;
      const int64_t i = begin % width;
      const int64_t count = std::min(end - begin, width - i);
      const float* gate = gate_up + token * 2 * width + i;
      kernels_.silu_mul(gate, gate + width, count, out + begin);
      begin += count;
    }
  });
}

void CpuBackend::RopeAndWriteKv(const RopeArgs& args) {
  const int64_t width =
      int64_t{args.num_heads + 2 * args.cache->num_kv_heads} * args.cache->head_dim;
  ForRanges(args.batch->num_tokens, RowsPerGrain(width), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) RotateToken(args, t);
  });
}

void CpuBackend::NormHeads(const float* weight, float eps, int count, int64_t head_dim,
                           float* heads) const {
  if (weight == nullptr) return;
  for (int h = 0; h < count; ++h) {
    float* const head = heads + h * head_dim;
    kernels_.add_rms_norm(head, nullptr, weight, eps, head_dim, head);
  }
}

void CpuBackend::RotateToken(const RopeArgs& args, int64_t token) {
  const KvCacheView& cache = *args.cache;
  const int64_t head_dim = cache.head_dim;
  const int64_t half = head_dim / 2;
  const int64_t slot = args.batch->slot_mapping[token];
  LS_CHECK(slot >= 0 && slot / cache.block_size < cache.num_blocks)
      << "slot " << slot << " of token " << token;
  const int64_t position = args.batch->positions[token];
  const int64_t width = (args.num_heads + 2 * cache.num_kv_heads) * head_dim;
  float* q = AsF32(args.qkv, args.qkv_dtype) + token * width;
  if (args.adjust.bias != nullptr) kernels_.add(q, args.adjust.bias, width);
  NormHeads(args.adjust.q_norm, args.adjust.eps, args.num_heads, head_dim, q);
  NormHeads(args.adjust.k_norm, args.adjust.eps, cache.num_kv_heads, head_dim,
            q + args.num_heads * head_dim);
  for (int h = 0; h < args.num_heads + cache.num_kv_heads; ++h) {
    kernels_.rotate(q + h * head_dim, args.cos + position * half, args.sin + position * half,
                    static_cast<int>(half));
  }
  const float* k = q + args.num_heads * head_dim;
  cache.dtype == DType::kE4M3 ? WriteKeys<uint16_t>(cache, slot, k)
                              : WriteKeys<uint32_t>(cache, slot, k);
  WriteValues(cache, slot, k + cache.num_kv_heads * head_dim);
}

// To what the cache holds.
void CpuBackend::Round(const float* from, int64_t count, DType dtype, float scale, void* to) const {
  if (dtype == DType::kBF16) {
    kernels_.round_bf16(from, count, static_cast<uint16_t*>(to));
  } else if (dtype == DType::kE4M3) {
    const float inverse = 1.0f / scale;
    std::transform(from, from + count, static_cast<E4M3*>(to),
                   [=](float x) { return ToE4M3(x * inverse); });
  } else {
    NarrowRow(from, count, dtype, to);
  }
}

// heads: [num_kv_heads, head_dim] of one token, whose words become a column of its block.
template <typename Word>
void CpuBackend::WriteKeys(const KvCacheView& cache, int64_t slot, const float* heads) const {
  constexpr int64_t kChunk = 128;
  Word words[kChunk];
  const int64_t block = slot / cache.block_size;
  const int64_t elements_per_word = cache.dtype == DType::kF32 ? 1 : 2;
  const int64_t num_words = cache.head_dim / elements_per_word;
  for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
    const float* head = heads + h * cache.head_dim;
    Word* column = static_cast<Word*>(cache.k) +
                   (block * cache.num_kv_heads + h) * cache.block_size * num_words +
                   slot % cache.block_size;
    for (int64_t first = 0; first < num_words; first += kChunk) {
      const int64_t count = std::min(kChunk, num_words - first);
      Round(head + elements_per_word * first, elements_per_word * count, cache.dtype, cache.k_scale,
            words);
      for (int64_t i = 0; i < count; ++i) column[(first + i) * cache.block_size] = words[i];
    }
  }
}

void CpuBackend::WriteValues(const KvCacheView& cache, int64_t slot, const float* heads) const {
  const int64_t block = slot / cache.block_size;
  const int64_t offset = slot % cache.block_size;
  for (int64_t h = 0; h < cache.num_kv_heads; ++h) {
    const int64_t at =
        ((block * cache.num_kv_heads + h) * cache.block_size + offset) * cache.head_dim;
    Round(heads + h * cache.head_dim, cache.head_dim, cache.dtype, cache.v_scale,
          static_cast<std::byte*>(cache.v) + at * DTypeBytes(cache.dtype));
  }
}

void CpuBackend::Attention(const AttentionArgs& args) { attention_.Run(args); }

void CpuBackend::Add(float* dst, const void* addends, DType dtype, int64_t count) {
  const float* const src = AsF32(addends, dtype);
  ForRanges(count, kGrain, [&](int64_t begin, int64_t end) {
    kernels_.add(dst + begin, src + begin, end - begin);
  });
}

}  // namespace cpu

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const CpuBackendOptions& options) {
  if (options.num_threads < 1 || options.num_threads > cpu::kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("number of threads is ", options.num_threads,
                                                   ", allowed are 1 to ", cpu::kMaxThreads));
  }
  ASSIGN_OR_RETURN(const cpu::VectorKernels* kernels, cpu::FindKernels(options.isa));
  return std::make_unique<cpu::CpuBackend>(*kernels, options.num_threads);
}

absl::Status CheckIsa(const std::string& isa) { return MakeCpuBackend({1, isa}).status(); }

}  // namespace lockstep
