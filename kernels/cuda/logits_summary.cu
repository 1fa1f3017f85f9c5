// Summaries of rows of logits, in two launches: a block for each segment of each job, which reads
// the logits once into shared memory, changes those that are to be adjusted, and leaves the
// segment's maximum, sum and largest keys; then a block for each job, which merges its segments.
//
// The limit is the reading of the logits, 4 bytes each (a row of 128,256: 0.5 MB). Additions are in
// an order that depends on the slices' width alone: f32 within a segment, f64 between segments.
#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/largest_keys.cuh"
#include "kernels/cuda/vectors.cuh"
#include "kernels/logits_summary.h"
#include "kernels/token_choice.h"

namespace lockstep::cuda {
namespace {

constexpr int kSegmentThreads = 512;
constexpr int kMergeThreads = 1024;

struct SegmentStats {
  float max;
  float sum;
};

// What a job's segments leave in the workspace: statistics of all jobs, then keys.
struct Workspace {
  SegmentStats* stats;  // [segments]
  LogitKey* keys;       // [segments, job.num_largest]
};
__device__ Workspace WorkspaceOf(const LogitsSummaryArgs& args, int64_t job, int64_t segments) {
  auto* stats = static_cast<SegmentStats*>(args.workspace);
  auto* keys = reinterpret_cast<LogitKey*>(stats + args.num_jobs * segments);
  return {stats + job * segments, keys + job * segments * args.max_largest};
}

// The logits of one segment, in shared memory, in the hands of a block.
class Segment {
 public:
  __device__ Segment(const LogitsSummaryArgs& args, float* logits) : logits_(logits) {
    const int64_t parts = gridDim.x / args.num_slices;
    const int64_t slice_begin = blockIdx.x / parts * args.slice_width;
    begin_ = slice_begin + blockIdx.x % parts * kLogitsSegment;
    const int64_t end = min(slice_begin + args.slice_width, args.width);
    size_ = static_cast<int>(max(int64_t{0}, min(end - begin_, kLogitsSegment)));
  }

  template <int n>
  __device__ void Read(const float* row) {
    for (int i = threadIdx.x * n; i < size_; i += blockDim.x * n) {
      Floats<n> x = Load<n>(row + begin_ + i);
#pragma unroll
      for (int e = 0; e < n; ++e) x.of[e] = Bounded(x.of[e]);
      StoreNear(logits_ + i, x);
    }
    __syncthreads();
  }

  __device__ void Adjust(const LogitsSummaryArgs& args, const LogitsJob& job) {
    const LogitAdjustment* next = args.adjustments + job.first_adjustment;
    ForEach(next, job.num_biases,
            [&](int64_t at, float bias) { logits_[at] = Bounded(__fadd_rn(logits_[at], bias)); });
    next += job.num_biases;
    Penalize(next, job,
             job.uncounted < 0 ? -1 : args.chosen[job.uncounted].token - args.first_token);
    next += job.num_penalties;
    ForEach(next, job.num_masks, [&](int64_t at, float) { logits_[at] = NegativeInfinity(); });
    if (job.first_allowed >= 0) {
      MaskOthers(reinterpret_cast<const uint32_t*>(args.adjustments + job.first_allowed));
    }
  }

  __device__ void CopyTo(float* row) const {
    for (int i = threadIdx.x; i < size_; i += blockDim.x) row[begin_ + i] = logits_[i];
  }

  __device__ int size() const { return size_; }
  __device__ float operator[](int i) const { return logits_[i]; }
  __device__ LogitKey Key(int i) const {
    return KeyOrZero(logits_[i], static_cast<uint32_t>(begin_ + i));
  }

 private:
  template <typename Change>
  __device__ void ForEach(const LogitAdjustment* adjustments, int count, const Change& change) {
    if (count == 0) return;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      const LogitAdjustment adjustment = adjustments[i];
      const int64_t at = adjustment.index - begin_;
      if (at >= 0 && at < size_) change(at, adjustment.amount);
    }
    __syncthreads();
  }

  // allowed: a bit of each token of the row.
  __device__ void MaskOthers(const uint32_t* allowed) {
    for (int i = threadIdx.x; i < size_; i += blockDim.x) {
      const int64_t index = begin_ + i;
      if ((allowed[index / 32] >> (index % 32) & 1) == 0) logits_[i] = NegativeInfinity();
    }
    __syncthreads();
  }

  // uncounted: the index of a token that counts once more than the list says, which may lack it.
  __device__ void Penalize(const LogitAdjustment* penalties, const LogitsJob& job,
                           int64_t uncounted) {
    __shared__ bool is_listed;
    uncounted -= begin_;
    if (threadIdx.x == 0) is_listed = uncounted < 0 || uncounted >= size_;
    __syncthreads();
    ForEach(penalties, job.num_penalties, [&](int64_t at, float count) {
      if (at == uncounted) is_listed = true;
      logits_[at] = Penalized(logits_[at], at == uncounted ? count + 1.0f : count, job);
    });
    if (threadIdx.x == 0 && !is_listed) {
      logits_[uncounted] = Penalized(logits_[uncounted], 1.0f, job);
    }
    __syncthreads();
  }

  static __device__ float Penalized(float value, float count, const LogitsJob& job) {
    value = Bounded(value > 0.0f ? __fdiv_rn(value, job.repetition_penalty)
                                 : __fmul_rn(value, job.repetition_penalty));
    if (count > 0.0f) {
      value = __fsub_rn(value, __fmul_rn(job.frequency_penalty, count));
      value = __fsub_rn(value, job.presence_penalty);
    }
    return Bounded(value);
  }

  float* logits_;
  int64_t begin_;
  int size_;
};

template <int n>
__global__ void __launch_bounds__(kSegmentThreads) SummarizeSegmentsKernel(LogitsSummaryArgs args) {
  __shared__ __align__(16) float logits[kLogitsSegment];
  const LogitsJob job = args.jobs[blockIdx.y];
  Segment segment(args, logits);
  segment.Read<n>(args.logits + job.row * args.width);
  segment.Adjust(args, job);
  if (job.kept >= 0) segment.CopyTo(args.kept + job.kept * args.num_slices * args.slice_width);

  const auto key_at = [&](int i) { return segment.Key(i); };
  LogitKey largest = 0;
  for (int i = threadIdx.x; i < segment.size(); i += blockDim.x) {
    const LogitKey key = segment.Key(i);
    largest = key > largest ? key : largest;
  }
  largest = BlockMaxKey(largest);
  const float max = largest == 0 ? NegativeInfinity() : ValueOf(largest);
  float sum = 0.0f;
  if (largest != 0 && job.inverse_temperature != 0.0f) {
    for (int i = threadIdx.x; i < segment.size(); i += blockDim.x) {
      sum += expf((segment[i] - max) * job.inverse_temperature);
    }
  }
  sum = BlockSum(sum);

  const Workspace workspace = WorkspaceOf(args, blockIdx.y, gridDim.x);
  if (threadIdx.x == 0) workspace.stats[blockIdx.x] = {max, sum};
  LogitKey* keys = workspace.keys + int64_t{blockIdx.x} * job.num_largest;
  if (job.num_largest == 1) {
    if (threadIdx.x == 0) keys[0] = largest;
  } else if (job.num_largest > 1) {
    const int count = CopyLargest(segment.size(), job.num_largest, key_at, keys);
    for (int i = count + threadIdx.x; i < job.num_largest; i += blockDim.x) keys[i] = 0;
  }
}

__device__ LogitsSlice MergeSlice(const SegmentStats* parts, int num_parts, float scale) {
  float max = NegativeInfinity();
  for (int i = 0; i < num_parts; ++i) max = fmaxf(max, parts[i].max);
  double sum = 0.0;
  for (int i = 0; i < num_parts; ++i) {
    if (parts[i].sum > 0.0f) sum += parts[i].sum * exp((double{parts[i].max} - max) * scale);
  }
  return {max, sum};
}

// The largest keys of all segments, in any order; how many.
__device__ int MergeKeys(const LogitKey* keys, int num_keys, int k, LogitKey* merged) {
  if (k == 1) {
    LogitKey largest = 0;
    for (int i = threadIdx.x; i < num_keys; i += blockDim.x) {
      largest = keys[i] > largest ? keys[i] : largest;
    }
    largest = BlockMaxKey(largest);
    if (threadIdx.x == 0) merged[0] = largest;
    __syncthreads();
    return largest > 0 ? 1 : 0;
  }
  return CopyLargest(
      num_keys, k, [&](int i) { return keys[i]; }, merged);
}

__global__ void __launch_bounds__(kMergeThreads, 1)
    MergeSegmentsKernel(LogitsSummaryArgs args, int num_parts) {
  __shared__ LogitKey merged[kMaxLargestLogits];
  const LogitsJob job = args.jobs[blockIdx.x];
  const int num_segments = num_parts * args.num_slices;
  const float* row = args.logits + job.row * args.width;
  const Workspace workspace = WorkspaceOf(args, blockIdx.x, num_segments);
  auto* summary = reinterpret_cast<LogitsSummary*>(args.out + job.out_offset);
  auto* slices = reinterpret_cast<LogitsSlice*>(summary + 1);
  auto* largest = reinterpret_cast<LargestLogit*>(slices + args.num_slices);
  for (int i = threadIdx.x; i < args.num_slices; i += blockDim.x) {
    slices[i] = MergeSlice(workspace.stats + i * num_parts, num_parts, job.inverse_temperature);
  }
  const int count = job.num_largest == 0 ? 0
                                         : MergeKeys(workspace.keys, num_segments * job.num_largest,
                                                     job.num_largest, merged);
  if (threadIdx.x == 0) {
    *summary = {count, job.told_index < 0 ? NegativeInfinity() : Bounded(row[job.told_index])};
  }
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const LogitKey key = merged[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += merged[j] > key ? 1 : 0;
    const auto index = static_cast<int32_t>(IndexOf(key));
    largest[rank] = {ValueOf(key), Bounded(row[index]), index};
  }
}

// Some `each` to a thread, in whole warps.
unsigned ThreadsFor(int64_t elements, int64_t each, int most) {
  const int64_t warps = CeilDiv<int64_t>(elements, each * kWarpSize);
  return static_cast<unsigned>(std::clamp<int64_t>(warps * kWarpSize, kWarpSize, most));
}

}  // namespace

cudaError_t LaunchSummarizeLogits(const LogitsSummaryArgs& args, cudaStream_t stream) {
  if (args.num_jobs == 0) return cudaSuccess;
  LS_CHECK(args.max_largest <= kMaxLargestLogits) << args.max_largest << " largest logits";
  const auto num_segments =
      static_cast<unsigned>(LogitsSegments(args.slice_width, args.num_slices));
  const auto num_jobs = static_cast<unsigned>(args.num_jobs);
  const bool vectorises =
      args.slice_width % kVectorElements == 0 && Vectorises(args.width, {args.logits});
  const cudaError_t launched = WithVectors(vectorises, [&](auto n) {
    return Launch(SummarizeSegmentsKernel<n>, dim3(num_segments, num_jobs),
                  ThreadsFor(std::min(args.slice_width, kLogitsSegment), 8, kSegmentThreads), 0,
                  stream, args);
  });
  if (launched != cudaSuccess) return launched;
  const int64_t num_keys = int64_t{num_segments} * args.max_largest;
  return Launch(MergeSegmentsKernel, num_jobs, ThreadsFor(num_keys, 8, kMergeThreads), 0, stream,
                args, static_cast<int>(num_segments) / args.num_slices);
}

}  // namespace lockstep::cuda
