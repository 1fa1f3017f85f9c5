// What a row's summaries say of it, for kernels that choose from them. Only for sources compiled
// without fused multiply-add: the arithmetic is the host's, bit for bit.
#pragma once

#include <cstdint>

#include "kernels/base/choice_walk.h"
#include "kernels/base/philox.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/largest_keys.cuh"
#include "kernels/logits_summary.h"
#include "kernels/token_choice.h"

namespace lockstep::cuda {

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

// The weight of the whole row, in `terms` for a moment; the largest logit.
struct RowStats {
  double max;
  double total;
};
__device__ inline RowStats CombineSlices(const Summaries& summaries, int num_ranks, int num_slices,
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

__device__ inline ChoiceRule RuleOf(const TokenChoiceJob& job, const RowStats& row) {
  return {.inverse_temperature = job.inverse_temperature,
          .top_k = job.top_k,
          .top_p = job.top_p,
          .min_p = job.min_p,
          .uniform = TokenUniform(job.seed, job.sequence_index, job.position),
          .max = row.max,
          .total = row.total};
}

}  // namespace lockstep::cuda
