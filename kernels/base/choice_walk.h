// The choice of a token, for the host and for kernels: a walk over tokens in the order of choice
// (larger processed logit first, lower id among equals), with the definition that every
// implementation and every layout must reproduce bit for bit.
//
// weight(token) = exp((logit - max) / temperature) in f64; total = their sum over the vocabulary,
// from the sums of its slices added as a binary tree of neighbours. The tokens allowed are a prefix
// of the order: the first top_k; of these the shortest prefix with at least top_p of their weight
// (of `total` without top_k); of these the ones with weight >= min_p. The draw u chooses the first
// token at which the running sum of weights (f64, in order) exceeds u * the allowed weight; without
// any filter the allowed weight is `total`, which adds in another order and may be larger by a
// rounding than all weights in turn: a draw in between chooses the first token, not the last, which
// is the least likely of all. Tokens of weight 0 are never chosen.
//
// Additions and multiplications are meant one by one: who compiles this must not fuse them.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

// exp(x) for x <= 0 to 2 ulp, from additions and multiplications only: the C library's differs
// between processors, and ranks must agree on every bit.
constexpr double PortableExp(double x) {
  if (!(x > -708.0)) return 0.0;
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const double n = (x * 1.44269504088896338700e+00 + kMagic) - kMagic;
  double r = x - n * 6.93147180369123816490e-01;  // fdlibm's ln2, high part: n * it is exact
  r = r - n * 1.90821492927058770002e-10;
  // Taylor to r^13 / 13!, |r| <= 0.347: the remainder is below 1e-17.
  constexpr double kCoefficients[] = {1.0 / 6227020800.0,
                                      1.0 / 479001600.0,
                                      1.0 / 39916800.0,
                                      1.0 / 3628800.0,
                                      1.0 / 362880.0,
                                      1.0 / 40320.0,
                                      1.0 / 5040.0,
                                      1.0 / 720.0,
                                      1.0 / 120.0,
                                      1.0 / 24.0,
                                      1.0 / 6.0,
                                      1.0 / 2.0,
                                      1.0,
                                      1.0};
  double p = 0.0;
  for (const double coefficient : kCoefficients) p = p * r + coefficient;
  const int64_t exponent = static_cast<int64_t>(n) + 1023;
  return p * std::bit_cast<double>(exponent << 52);
}

// What a slice of the vocabulary adds to its row's total: `sum` is that of exp((logit - max) *
// inverse_temperature) over the slice. 0 for a slice whose logits are all -infinity.
constexpr double SliceWeight(double sum, double max, double row_max, double inverse_temperature) {
  return sum > 0.0 ? sum * PortableExp((max - row_max) * inverse_temperature) : 0.0;
}

// Neighbours, then neighbours of neighbours, ...: the same sum for every tp in {1, 2, 4, 8}.
// Overwrites terms; count >= 1.
constexpr double AddNeighbours(double* terms, int count) {
  for (int step = 1; step < count; step *= 2) {
    for (int i = 0; i + step < count; i += 2 * step) terms[i] += terms[i + step];
  }
  return terms[0];
}

struct ChoiceRule {
  double inverse_temperature = 1.0;
  int32_t top_k = 0;  // 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  double uniform = 0.0;  // [0, 1)
  double max = 0.0;      // largest processed logit
  double total = 0.0;    // weight of the whole vocabulary

  constexpr bool is_unfiltered() const { return top_k == 0 && top_p >= 1.0 && min_p == 0.0; }
  constexpr double WeightOf(float value) const {
    return PortableExp((static_cast<double>(value) - max) * inverse_temperature);
  }
};

// Walks over everything that could be allowed. Steps is where it goes:
//   bool Next(double* weight);             // of the next token; false: no more is known
//   bool truncated() const;                // after that: though there may be more
//   void Keep(double weight, double sum);  // the token may be allowed; the sum with it
//   int32_t size() const;                  // of the tokens kept
// False: it ended truncated, before the choice was certain.
template <typename Steps>
constexpr bool WalkTokens(const ChoiceRule& rule, Steps& steps) {
  // With top_k, top_p is a share of the top_k tokens' weight: all of them must be walked.
  const bool needs_all_top_k = rule.top_k > 0 && rule.top_p < 1.0;
  const double enough = rule.is_unfiltered() ? rule.uniform * rule.total : rule.top_p * rule.total;
  double sum = 0.0;
  while (rule.top_k == 0 || steps.size() < rule.top_k) {
    double weight = 0.0;
    if (!steps.Next(&weight)) return !steps.truncated();
    if (weight == 0.0 || (weight < rule.min_p && !needs_all_top_k)) return true;
    sum += weight;
    steps.Keep(weight, sum);
    if (rule.is_unfiltered() && sum > enough) return true;
    if (rule.top_k == 0 && rule.top_p < 1.0 && sum >= enough) return true;
  }
  return true;
}

// The first of `count` steps for which is_true, which is true of all that follow; count if none is.
template <typename Predicate>
constexpr int32_t FirstStep(int32_t count, const Predicate& is_true) {
  int32_t begin = 0;
  while (begin < count) {
    const int32_t middle = begin + (count - begin) / 2;
    if (is_true(middle)) {
      count = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// Which of the tokens kept, at least one, is chosen. Steps also has
//   double weight(int32_t step) const;
//   double sum(int32_t step) const;
template <typename Steps>
constexpr int32_t ChooseStep(const ChoiceRule& rule, const Steps& steps) {
  int32_t allowed = steps.size();
  if (rule.top_k > 0 && rule.top_p < 1.0) {
    const double enough = rule.top_p * steps.sum(allowed - 1);
    const int32_t last =
        FirstStep(allowed, [&](int32_t step) { return steps.sum(step) >= enough; });
    if (last < allowed) allowed = last + 1;
  }
  while (allowed > 1 && steps.weight(allowed - 1) < rule.min_p) --allowed;
  const double weight = rule.is_unfiltered() ? rule.total : steps.sum(allowed - 1);
  const double target = rule.uniform * weight;
  const int32_t chosen = FirstStep(allowed, [&](int32_t step) { return steps.sum(step) > target; });
  if (chosen < allowed) return chosen;
  return rule.is_unfiltered() ? 0 : allowed - 1;
}

}  // namespace lockstep
