// The passes over a row of logits: maximum, sum of exponentials, selection of the largest. Pure,
// any thread.
//
// Numbers do not depend on the instruction set: every operation is a plain f32 add, multiply or
// compare, in one written order. NaN counts as -infinity everywhere; +infinity must have been
// clamped by the caller (LargestIsInfinite).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// A token with its value. "Before" is the order of choice: larger value first, lower id among
// equals.
struct Candidate {
  float value = 0.0f;
  int32_t token = 0;
};
inline bool Before(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.token < b.token;
}

// The largest element and its lowest index; (-infinity, -1) when every element is -infinity or NaN.
Candidate LargestOf(std::span<const float> row);

// Sum over i of exp((row[i] - max) * inverse_temperature); 0 when max is -infinity. 16 lanes (lane
// = index mod 16) in f32 over blocks of 1024, lanes added as a binary tree of neighbours, blocks
// added in f64. Relative error below 1e-6.
double SumOfExps(std::span<const float> row, float max, float inverse_temperature);

// The `count` first elements of the row in the order of choice, sorted; fewer when fewer are above
// -infinity. The token of row[i] is first_token + i. `selected` is overwritten; its capacity is
// reused.
void SelectLargest(std::span<const float> row, int32_t first_token, int count,
                   std::vector<Candidate>& selected);

}  // namespace lockstep
