// Loads and stores of the first n lanes of a vector policy, 1 <= n <= its width.
#pragma once

namespace lockstep::cpu {
namespace {

template <class V>
typename V::F LoadUpTo(const float* p, int n) {
  return n == V::kWidth ? V::Load(p) : V::LoadFirst(p, n);
}
template <class V>
void StoreUpTo(float* p, typename V::F v, int n) {
  n == V::kWidth ? V::Store(p, v) : V::StoreFirst(p, v, n);
}

}  // namespace
}  // namespace lockstep::cpu
