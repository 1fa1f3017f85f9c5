// residual += delta, then its RMSNorm: one block to a row, which stays in registers between the sum
// of its squares and its scaling (and, where it is quantized, its largest magnitude: fused_fp8.cu).
#pragma once

#include "kernels/backend_args.h"
#include "kernels/cuda/vectors.cuh"

namespace lockstep::cuda {

// Vectors of a row that a thread keeps; what a longer row has beyond them is read again (from the
// second-level cache, where the thread itself has just written it).
constexpr int kRmsNormKept = 4;
// Of those, whose residual and delta are read at once: as many as most rows have (RowThreads), and
// as there are registers for.
constexpr int kRmsNormAtOnce = 2;
static_assert(kRmsNormKept % kRmsNormAtOnce == 0);

// One row in the hands of one thread: its vectors threadIdx.x, + blockDim.x, ... Deltas are of G.
template <int n, typename G>
class RmsNormRow {
 public:
  __device__ RmsNormRow(const RmsNormArgs& args, int64_t row)
      : hidden_(args.hidden),
        eps_(args.eps),
        residual_(args.residual + row * args.hidden),
        delta_(args.delta == nullptr ? nullptr
                                     : static_cast<const G*>(args.delta) + row * args.hidden),
        weight_(args.weight) {}

  __device__ void FetchWeights() {
#pragma unroll
    for (int j = 0; j < kRmsNormKept; ++j) {
      if (Column(j) < hidden_) weights_[j] = Load<n>(weight_ + Column(j));
    }
  }

  // Gives the thread's share of the sum of squares.
  __device__ float AddAndSquare() {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kRmsNormKept; j += kRmsNormAtOnce) ReadKept(j);
#pragma unroll
    for (int j = 0; j < kRmsNormKept; ++j) {
      if (Column(j) < hidden_) sum = Square(kept_[j], Column(j), sum);
    }
    for (int64_t j = kRmsNormKept; Column(j) < hidden_; ++j) {
      Floats<n> x = Load<n>(residual_ + Column(j));
      if (delta_ != nullptr) Accumulate(x, Load<n>(delta_ + Column(j)));
      sum = Square(x, Column(j), sum);
    }
    return sum;
  }

  // sum: of all threads.
  __device__ void Normalize(float sum) {
    scale_ = 1.0f / sqrtf(sum / static_cast<float>(hidden_) + eps_);
#pragma unroll
    for (int j = 0; j < kRmsNormKept; ++j) {
      if (Column(j) < hidden_) Scale(kept_[j], weights_[j]);
    }
  }

  // visit(numbers, their column) for the thread's part of the norm.
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
#pragma unroll
    for (int j = 0; j < kRmsNormKept; ++j) {
      if (Column(j) < hidden_) visit(kept_[j], Column(j));
    }
    for (int64_t j = kRmsNormKept; Column(j) < hidden_; ++j) {
      Floats<n> x = Load<n>(residual_ + Column(j));
      Scale(x, Load<n>(weight_ + Column(j)));
      visit(x, Column(j));
    }
  }

 private:
  // All of these reads are under way before the first is needed, which takes loops of nothing but
  // reads: with additions among them the compiler makes branches of the bounds, and waits in each.
  __device__ void ReadKept(int first) {
    Floats<n> deltas[kRmsNormAtOnce];
#pragma unroll
    for (int j = 0; j < kRmsNormAtOnce; ++j) {
      if (Column(first + j) < hidden_) kept_[first + j] = Load<n>(residual_ + Column(first + j));
    }
    if (delta_ == nullptr) return;
#pragma unroll
    for (int j = 0; j < kRmsNormAtOnce; ++j) {
      if (Column(first + j) < hidden_) deltas[j] = Load<n>(delta_ + Column(first + j));
    }
#pragma unroll
    for (int j = 0; j < kRmsNormAtOnce; ++j) {
      if (Column(first + j) < hidden_) Accumulate(kept_[first + j], deltas[j]);
    }
  }

  __device__ int64_t Column(int64_t j) const { return (j * blockDim.x + threadIdx.x) * n; }

  __device__ static void Accumulate(Floats<n>& x, const Floats<n>& delta) {
#pragma unroll
    for (int e = 0; e < n; ++e) x.of[e] += delta.of[e];
  }

  __device__ float Square(const Floats<n>& x, int64_t column, float sum) const {
    if (delta_ != nullptr) Store(residual_ + column, x);
#pragma unroll
    for (int e = 0; e < n; ++e) sum = fmaf(x.of[e], x.of[e], sum);
    return sum;
  }

  __device__ void Scale(Floats<n>& x, const Floats<n>& weight) const {
#pragma unroll
    for (int e = 0; e < n; ++e) x.of[e] = x.of[e] * scale_ * weight.of[e];
  }

  int64_t hidden_;
  float eps_;
  float scale_ = 0.0f;
  float* residual_;
  const G* delta_;
  const float* weight_;
  Floats<n> kept_[kRmsNormKept];
  Floats<n> weights_[kRmsNormKept];
};

template <int n, typename G, typename T>
__global__ void __launch_bounds__(1024) AddRmsNormKernel(RmsNormArgs args) {
  LetLaterKernelsBegin();
  RmsNormRow<n, G> row(args, blockIdx.x);
  row.FetchWeights();
  WaitForEarlierKernels();
  row.Normalize(BlockSum(row.AddAndSquare()));
  T* const out = static_cast<T*>(args.out) + int64_t{blockIdx.x} * args.hidden;
  row.ForEach([&](const Floats<n>& x, int64_t column) { Store(out + column, x); });
}

}  // namespace lockstep::cuda
