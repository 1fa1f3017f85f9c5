// Tokens chosen from whole rows of logits, where summaries end before the choice is certain: a
// block for each row. It selects the next kBatch logits in the order of choice and sorts them, over
// and over, in up to three walks over tokens. The limit is the reading: up to nine times for a
// batch, 0.5 MB each for a vocabulary of 128,256; mostly one batch is enough. Rows that are decided
// already cost a block that leaves.
//
// Compiled without fused multiply-add (CMakeLists.txt).
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/row_summaries.cuh"

namespace lockstep::cuda {
namespace {

constexpr int kBatch = 1024;  // a power of two; a thread for each

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

// A whole row, of which each rank has a part.
class WholeRow {
 public:
  __device__ WholeRow(const TokenChoiceArgs& args, const TokenChoiceJob& job, int32_t kept_row) {
    const bool is_here = job.row >= 0;
    values_ =
        is_here ? args.logits + job.row * args.vocab_size : args.kept + kept_row * args.part_width;
    rank_stride_ = is_here ? 0 : args.kept_rows * args.part_width;
    part_width_ = static_cast<int>(is_here ? args.vocab_size : args.part_width);
    width_ = static_cast<int>(args.vocab_size);
  }
  __device__ int width() const { return width_; }
  __device__ float operator[](int i) const {
    const int rank = i < part_width_ ? 0 : i / part_width_;
    return Bounded(values_[rank * rank_stride_ + i - rank * part_width_]);
  }

 private:
  const float* values_;
  int64_t rank_stride_;
  int part_width_;
  int width_;
};

// The next ones in the order of choice after `last`, sorted, then zeros.
__device__ void NextBatch(const WholeRow& row, LogitKey last, LogitKey* keys) {
  keys[threadIdx.x] = 0;
  const auto key_at = [&](int i) {
    const LogitKey key = KeyOrZero(row[i], static_cast<uint32_t>(i));
    return key < last ? key : LogitKey{0};
  };
  CopyLargest(row.width(), kBatch, key_at, keys);
  Sort(keys);
}

// Where a walk ends: before a token that is too light, or one too many; with the token at which the
// sum of weights reaches or exceeds these.
struct WalkEnd {
  double least_weight;
  int num_tokens;
  double reached;
  double exceeded;
};

// How far a walk has come: over how many tokens, and of them up to the last that is heavy enough
// for min_p.
struct Walk {
  int num_tokens;
  double sum;
  int num_heavy;
  double heavy_sum;
  LogitKey last;  // 0: none
  bool ended;
};

// By one thread, over one more token.
__device__ void Step(LogitKey key, double weight, double min_p, const WalkEnd& end, Walk& walk) {
  if (weight == 0.0 || weight < end.least_weight || walk.num_tokens == end.num_tokens) {
    walk.ended = true;
    return;
  }
  walk.sum += weight;
  walk.last = key;
  ++walk.num_tokens;
  if (weight >= min_p) {
    walk.num_heavy = walk.num_tokens;
    walk.heavy_sum = walk.sum;
  }
  walk.ended = walk.sum >= end.reached || walk.sum > end.exceeded;
}

__device__ void WalkRow(const WholeRow& row, const ChoiceRule& rule, const WalkEnd& end,
                        Walk& walk) {
  __shared__ LogitKey keys[kBatch];
  __shared__ double weights[kBatch];
  __syncthreads();                         // all have read of an earlier walk what they want
  Walk mine = {0, 0.0, 0, 0.0, 0, false};  // of the thread that walks, which reads no shared one
  LogitKey last = ~LogitKey{0};
  do {
    NextBatch(row, last, keys);
    last = keys[kBatch - 1];
    const LogitKey key = keys[threadIdx.x];
    weights[threadIdx.x] = key == 0 ? 0.0 : rule.WeightOf(ValueOf(key));
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBatch && !mine.ended; ++i) {
        Step(keys[i], weights[i], rule.min_p, end, mine);
      }
      walk = mine;
    }
    __syncthreads();
  } while (!walk.ended && last != 0);
}

// The last token of a walk that chooses: WalkTokens and ChooseStep, which may look back at all
// tokens, as up to three walks that remember none.
__device__ void WalkToChoice(const WholeRow& row, const ChoiceRule& rule, Walk& walk) {
  const double infinity = __uint_as_float(0x7f800000u);
  const int all = row.width();
  if (rule.is_unfiltered()) {
    const double target = rule.uniform * rule.total;
    WalkRow(row, rule, {0.0, all, infinity, target}, walk);
    if (!(walk.sum > target)) WalkRow(row, rule, {0.0, 1, infinity, infinity}, walk);
    return;
  }
  WalkEnd allowed = {rule.min_p, rule.top_k > 0 ? rule.top_k : all, infinity, infinity};
  if (rule.top_p < 1.0) allowed.reached = rule.top_p * rule.total;
  if (rule.top_k > 0 && rule.top_p < 1.0) {  // a share of the top_k tokens' weight, light or not
    allowed.least_weight = 0.0;
    allowed.reached = infinity;
    WalkRow(row, rule, allowed, walk);
    allowed.reached = rule.top_p * walk.sum;
  }
  WalkRow(row, rule, allowed, walk);
  const WalkEnd choice = {0.0, walk.num_heavy, infinity, rule.uniform * walk.heavy_sum};
  WalkRow(row, rule, choice, walk);
}

__global__ void __launch_bounds__(kBatch, 1) ChooseFromWholeRowsKernel(TokenChoiceArgs args) {
  __shared__ Walk walk;
  __shared__ double terms[kMaxChoiceSteps];
  const TokenChoiceJob job = args.jobs[blockIdx.x];
  const Summaries summaries(args, job);
  ChosenToken* out = args.chosen + job.place;
  if ((job.row < 0 && job.kept_row < 0) || out->token != kUndecidedToken) return;
  const ChoiceRule rule = RuleOf(job, CombineSlices(summaries, args.num_ranks, args.num_slices,
                                                    job.inverse_temperature, terms));
  WalkToChoice(WholeRow(args, job, job.kept_row), rule, walk);
  if (threadIdx.x != 0) return;
  const WholeRow raw(args, job, job.kept_raw_row >= 0 ? job.kept_raw_row : job.kept_row);
  const int token = walk.last == 0 ? 0 : static_cast<int>(IndexOf(walk.last));
  *out = {token, raw[token]};
}

}  // namespace

cudaError_t LaunchChooseFromWholeRows(const TokenChoiceArgs& args, cudaStream_t stream) {
  return Launch(ChooseFromWholeRowsKernel, static_cast<unsigned>(args.num_jobs), kBatch, 0, stream,
                args);
}

}  // namespace lockstep::cuda
