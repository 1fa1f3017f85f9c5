// Tokens chosen from summaries of logits: a block for each row. All threads bring the largest
// logits of all ranks into one order and compute their weights; one thread walks over them, since
// the sums it compares with are defined in that order. The limit is that walk, an addition after
// the other: some microseconds where it goes over hundreds of tokens.
//
// Where it does not end there, a second launch goes on in the whole row (whole_row_choice.cu).
//
// Compiled without fused multiply-add (CMakeLists.txt): the arithmetic is the host's, bit for bit.
#include <cstdint>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_summaries.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kChoiceThreads = 256;

// All ranks' largest logits, then the order of choice as far as it is known.
struct Candidates {
  LogitKey lists[kMaxChoiceCandidates];  // [num_ranks, num_largest], 0 where there are less
  LogitKey keys[kMaxChoiceSteps];
  int num_keys;
  int num_known;  // of the order: up to where the first list that was cut ends
};

__device__ void ReadLists(const Summaries& summaries, int num_ranks, int num_largest,
                          Candidates& candidates) {
  if (threadIdx.x == 0) {
    candidates.num_keys = 0;
    candidates.num_known = INT32_MAX;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_ranks * num_largest; i += blockDim.x) {
    const int rank = i / num_largest;
    const bool is_there = i % num_largest < summaries.Head(rank).count;
    candidates.lists[i] = is_there ? summaries.Key(rank, i % num_largest) : 0;
    if (is_there) atomicAdd(&candidates.num_keys, 1);
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
  const bool goes_on = args.logits != nullptr || args.kept != nullptr;
  return launched == cudaSuccess && goes_on ? LaunchChooseFromWholeRows(args, stream) : launched;
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
