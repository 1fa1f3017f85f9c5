// Tokens chosen from summaries of logits: a block for each row. All threads bring the largest
// logits of all ranks into one order and compute their weights; one thread walks over them, since
// the sums it compares with are defined in that order. The limit is that walk, an addition after
// the other: some microseconds where it goes over hundreds of tokens.
//
// Where it does not end there, a second launch goes over the whole row, again a block for each: it
// selects the next kBatch logits in the order of choice and sorts them, over and over, until the
// choice is certain. A batch reads the row up to nine times, 0.5 MB each for a vocabulary of
// 128,256; mostly one is enough. Rows that are decided cost a block that leaves.
//
// Compiled without fused multiply-add (CMakeLists.txt): the arithmetic is the host's, bit for bit.
#include <cstdint>

#include "kernels/base/choice_walk.h"
#include "kernels/base/philox.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/largest_keys.cuh"
#include "kernels/logits_summary.h"
#include "kernels/token_choice.h"

namespace lockstep::cuda {
namespace {

constexpr int kChoiceThreads = 256;
constexpr int kBatch = 1024;  // a power of two; a thread for each

// A row's summaries, by rank.
class Summaries {
 public:
  __device__ Summaries(const TokenChoiceArgs& args, const TokenChoiceJob& job)
      : args_(args), job_(job) {}

  __device__ const LogitsSummary& Head(int rank) const {
    return *reinterpret_cast<const LogitsSummary*>(args_.summaries + rank * args_.rank_stride +
                                                   job_.summary);
  }
  __device__ const LogitsSlice* Slices(int rank) const {
    return reinterpret_cast<const LogitsSlice*>(&Head(rank) + 1);
  }
  __device__ const LargestLogit& Largest(int rank, int i) const {
    return reinterpret_cast<const LargestLogit*>(Slices(rank) + args_.num_slices)[i];
  }
  __device__ LogitKey Key(int rank, int i) const {
    const LargestLogit& largest = Largest(rank, i);
    return KeyOf(largest.value, static_cast<uint32_t>(rank * args_.part_width + largest.index));
  }
  // May the rank's part have more above -infinity than its list?
  __device__ bool IsCut(int rank) const {
    const int64_t part = min(args_.part_width, args_.vocab_size - rank * args_.part_width);
    return Head(rank).count == job_.num_largest && job_.num_largest < part;
  }

 private:
  const TokenChoiceArgs& args_;
  const TokenChoiceJob& job_;
};

// All ranks' largest logits, then the order of choice as far as it is known.
struct Candidates {
  LogitKey lists[kMaxChoiceCandidates];  // [num_ranks, num_largest], 0 where there are less
  LogitKey keys[kMaxChoiceSteps];
  int num_keys;
  int num_known;    // of the order: up to where the first list that was cut ends
  bool is_missing;  // a rank has no summary
};

__device__ void ReadLists(const Summaries& summaries, int num_ranks, int num_largest,
                          Candidates& candidates) {
  if (threadIdx.x == 0) {
    candidates.num_keys = 0;
    candidates.num_known = INT32_MAX;
    candidates.is_missing = false;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_ranks * num_largest; i += blockDim.x) {
    const int rank = i / num_largest;
    const int count = summaries.Head(rank).count;
    const bool is_there = i % num_largest < count;
    candidates.lists[i] = is_there ? summaries.Key(rank, i % num_largest) : 0;
    if (is_there) atomicAdd(&candidates.num_keys, 1);
    if (count < 0) candidates.is_missing = true;
  }
  __syncthreads();
}

__device__ void Merge(const Summaries& summaries, int num_ranks, int num_largest,
                      Candidates& candidates) {
  for (int i = threadIdx.x; i < num_ranks * num_largest; i += blockDim.x) {
    const LogitKey key = candidates.lists[i];
    if (key == 0) continue;
    const int rank = i / num_largest;
    int place = i % num_largest;
    for (int other = 0; other < num_ranks; ++other) {
      if (other == rank) continue;
      const LogitKey* list = candidates.lists + other * num_largest;
      place += FirstStep(num_largest, [&](int32_t at) { return list[at] < key; });
    }
    if (place < kMaxChoiceSteps) candidates.keys[place] = key;
    if (i % num_largest == num_largest - 1 && summaries.IsCut(rank)) {
      atomicMin(&candidates.num_known, place + 1);
    }
  }
  if (threadIdx.x == 0 && candidates.num_keys > kMaxChoiceSteps) {
    atomicMin(&candidates.num_known, kMaxChoiceSteps);
  }
  __syncthreads();
}

// The walk's steps, whose weights are known.
struct WeighedSteps {
  const double* weights;
  double* sums;
  int num_weights;
  bool is_truncated;
  int num_kept;

  constexpr bool Next(double* weight) const {
    if (num_kept == num_weights) return false;
    *weight = weights[num_kept];
    return true;
  }
  constexpr bool truncated() const { return is_truncated; }
  constexpr void Keep(double, double sum) { sums[num_kept++] = sum; }
  constexpr int32_t size() const { return num_kept; }
  constexpr double weight(int32_t step) const { return weights[step]; }
  constexpr double sum(int32_t step) const { return sums[step]; }
};

// The weight of the whole row, in `terms` for a moment; the largest logit.
struct RowStats {
  double max;
  double total;
};
__device__ RowStats CombineSlices(const Summaries& summaries, int num_ranks, int num_slices,
                                  double inverse_temperature, double* terms) {
  double max = summaries.Slices(0)[0].max;
  for (int i = 1; i < num_ranks * num_slices; ++i) {
    const double other = summaries.Slices(i / num_slices)[i % num_slices].max;
    max = other > max ? other : max;
  }
  for (int i = threadIdx.x; i < num_ranks * num_slices; i += blockDim.x) {
    const LogitsSlice slice = summaries.Slices(i / num_slices)[i % num_slices];
    terms[i] = SliceWeight(slice.sum, slice.max, max, inverse_temperature);
  }
  __syncthreads();
  if (threadIdx.x == 0) AddNeighbours(terms, num_ranks * num_slices);
  __syncthreads();
  return {max, terms[0]};
}

__device__ ChoiceRule RuleOf(const TokenChoiceJob& job, const RowStats& row) {
  return {.inverse_temperature = job.inverse_temperature,
          .top_k = job.top_k,
          .top_p = job.top_p,
          .min_p = job.min_p,
          .uniform = TokenUniform(job.seed, job.sequence_index, job.position),
          .max = row.max,
          .total = row.total};
}

// The key chosen, 0 if all logits are -infinity; kUndecided.
constexpr LogitKey kUndecided = ~LogitKey{0};
__device__ LogitKey Choose(const TokenChoiceJob& job, const RowStats& row,
                           const Candidates& candidates, double* weights, double* sums) {
  const ChoiceRule rule = RuleOf(job, row);
  const bool is_cut = candidates.num_known < INT32_MAX;
  const int num_weights = is_cut ? candidates.num_known : candidates.num_keys;
  for (int i = threadIdx.x; i < num_weights; i += blockDim.x) {
    weights[i] = rule.WeightOf(ValueOf(candidates.keys[i]));
  }
  __syncthreads();
  if (threadIdx.x != 0) return kUndecided;
  WeighedSteps steps = {weights, sums, num_weights, is_cut, 0};
  if (!WalkTokens(rule, steps)) return kUndecided;
  return steps.size() == 0 ? 0 : candidates.keys[ChooseStep(rule, steps)];
}

__global__ void __launch_bounds__(kChoiceThreads) ChooseTokensKernel(TokenChoiceArgs args) {
  __shared__ Candidates candidates;
  __shared__ double weights[kMaxChoiceSteps];
  __shared__ double sums[kMaxChoiceSteps];
  __shared__ LogitKey chosen;
  const TokenChoiceJob job = args.jobs[blockIdx.x];
  const Summaries summaries(args, job);
  ChosenToken* out = args.chosen + job.place;
  if (threadIdx.x == 0) *out = {kUndecidedToken, 0.0f};
  if (int64_t{args.num_ranks} * job.num_largest > kMaxChoiceCandidates) return;
  ReadLists(summaries, args.num_ranks, job.num_largest, candidates);
  if (candidates.is_missing) return;
  Merge(summaries, args.num_ranks, job.num_largest, candidates);
  if (job.inverse_temperature == 0.0f) {
    if (threadIdx.x == 0) chosen = candidates.num_keys == 0 ? 0 : candidates.keys[0];
  } else {
    const RowStats row =
        CombineSlices(summaries, args.num_ranks, args.num_slices, job.inverse_temperature, sums);
    const LogitKey key = Choose(job, row, candidates, weights, sums);
    if (threadIdx.x == 0) chosen = key;
  }
  __syncthreads();
  if (chosen == 0 && threadIdx.x == 0) *out = {0, summaries.Head(0).told};
  for (int i = threadIdx.x; i < args.num_ranks * job.num_largest; i += blockDim.x) {
    if (chosen == 0 || candidates.lists[i] != chosen) continue;
    *out = {static_cast<int32_t>(IndexOf(chosen)),
            summaries.Largest(i / job.num_largest, i % job.num_largest).raw};
  }
}

// ---- whole rows ----

// Descending, by all kBatch threads: bitonic (Batcher 1968).
__device__ void Sort(LogitKey* keys) {
  const int i = threadIdx.x;
  for (int run = 2; run <= kBatch; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      const int other = i ^ distance;
      if (other > i) {
        const bool descends = (i & run) == 0;
        const LogitKey a = keys[i];
        const LogitKey b = keys[other];
        if ((a < b) == descends) {
          keys[i] = b;
          keys[other] = a;
        }
      }
      __syncthreads();
    }
  }
}

// The next ones in the order of choice after `last`, sorted, then zeros.
__device__ void NextBatch(const float* row, int width, LogitKey last, LogitKey* keys) {
  keys[threadIdx.x] = 0;
  const auto key_at = [&](int i) {
    const LogitKey key = KeyOrZero(Bounded(row[i]), static_cast<uint32_t>(i));
    return key < last ? key : LogitKey{0};
  };
  CopyLargest(width, kBatch, key_at, keys);
  Sort(keys);
}

// How far a walk has come.
struct Walk {
  double sum;     // of the tokens walked over
  LogitKey last;  // the last of them; 0: none
  bool ended;
};

// Over the tokens allowed, up to the first at which the sum exceeds `target`; top_k is off.
__device__ void WalkRow(const float* row, int width, const ChoiceRule& rule, double target,
                        Walk& walk) {
  __shared__ LogitKey keys[kBatch];
  __shared__ double weights[kBatch];
  __syncthreads();  // all have read of an earlier walk what they want
  if (threadIdx.x == 0) walk = {0.0, 0, false};
  LogitKey last = ~LogitKey{0};
  do {
    NextBatch(row, width, last, keys);
    last = keys[kBatch - 1];
    const LogitKey key = keys[threadIdx.x];
    weights[threadIdx.x] = key == 0 ? 0.0 : rule.WeightOf(ValueOf(key));
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBatch && !walk.ended; ++i) {
        if (weights[i] == 0.0 || weights[i] < rule.min_p) {
          walk.ended = true;
          break;
        }
        walk.sum += weights[i];
        walk.last = keys[i];
        walk.ended = walk.sum > target || (rule.top_p < 1.0 && walk.sum >= rule.top_p * rule.total);
      }
    }
    __syncthreads();
  } while (!walk.ended && last != 0);
}

__global__ void __launch_bounds__(kBatch, 1) ChooseFromWholeRowsKernel(TokenChoiceArgs args) {
  __shared__ Walk walk;
  __shared__ double terms[kMaxChoiceSteps];
  const TokenChoiceJob job = args.jobs[blockIdx.x];
  ChosenToken* out = args.chosen + job.place;
  if (job.row < 0 || out->token != kUndecidedToken) return;
  const ChoiceRule rule =
      RuleOf(job, CombineSlices(Summaries(args, job), args.num_ranks, args.num_slices,
                                job.inverse_temperature, terms));
  const float* row = args.logits + job.row * args.vocab_size;
  const auto width = static_cast<int>(args.vocab_size);
  double target = rule.uniform * rule.total;
  if (!rule.is_unfiltered()) {
    WalkRow(row, width, rule, __uint_as_float(0x7f800000u), walk);  // never exceeded
    target = rule.uniform * walk.sum;
  }
  WalkRow(row, width, rule, target, walk);
  if (threadIdx.x == 0) *out = {static_cast<int32_t>(IndexOf(walk.last)), ValueOf(walk.last)};
}

__global__ void TakeChosenTokensKernel(const ChosenToken* chosen, const int32_t* sources,
                                       int64_t num_tokens, int32_t* ids) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < num_tokens && sources[i] >= 0) ids[i] = chosen[sources[i]].token;
}

__global__ void PlaceChosenTokensKernel(const ChosenToken* chosen, const int32_t* places,
                                        int64_t count, ChosenToken* table) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) table[places[i]] = chosen[i];
}

unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>(CeilDiv<int64_t>(count, kChoiceThreads));
}

}  // namespace

cudaError_t LaunchChooseTokens(const TokenChoiceArgs& args, cudaStream_t stream) {
  if (args.num_jobs == 0) return cudaSuccess;
  LS_CHECK(int64_t{args.num_ranks} * args.num_slices <= kMaxChoiceSteps)
      << args.num_ranks << " ranks";
  const auto num_jobs = static_cast<unsigned>(args.num_jobs);
  const cudaError_t launched =
      Launch(ChooseTokensKernel, num_jobs, kChoiceThreads, 0, stream, args);
  if (launched != cudaSuccess || args.logits == nullptr) return launched;
  return Launch(ChooseFromWholeRowsKernel, num_jobs, kBatch, 0, stream, args);
}

cudaError_t LaunchTakeChosenTokens(const ChosenToken* chosen, const int32_t* sources,
                                   int64_t num_tokens, int32_t* ids, cudaStream_t stream) {
  if (num_tokens == 0) return cudaSuccess;
  return Launch(TakeChosenTokensKernel, BlocksFor(num_tokens), kChoiceThreads, 0, stream, chosen,
                sources, num_tokens, ids);
}

cudaError_t LaunchPlaceChosenTokens(const ChosenToken* chosen, const int32_t* places, int64_t count,
                                    ChosenToken* table, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return Launch(PlaceChosenTokensKernel, BlocksFor(count), kChoiceThreads, 0, stream, chosen,
                places, count, table);
}

}  // namespace lockstep::cuda
