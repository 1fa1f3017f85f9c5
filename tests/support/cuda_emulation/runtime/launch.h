// Kernel launches.
#pragma once

#include <functional>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/cuda_emulation/runtime/runtime_api.h"

namespace lockstep::cuda_emulation {

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::initializer_list<const void*> pointers, std::function<void()> thread);
// Registers are not emulated; these are what a block of 384 threads can have.
cudaFuncAttributes AttributesOfKernels();
cudaError_t SetKernelAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

// What a kernel's argument points to, if it is a pointer.
template <typename T>
const void* PointerIn(const T& argument) {
  if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) {
    return argument;
  } else {
    static_assert(std::is_trivially_copyable_v<T>, "a kernel's arguments are copied as bytes");
    return nullptr;
  }
}

}  // namespace lockstep::cuda_emulation

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((0 + ... + sizeof(Parameters)) <= 4096, "a kernel takes 4 KB of arguments at most");
  const std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  const auto launch = [&](const auto&... value) {
    return lockstep::cuda_emulation::LaunchKernel(*config, reinterpret_cast<const void*>(kernel),
                                                  {lockstep::cuda_emulation::PointerIn(value)...},
                                                  [kernel, values] { std::apply(kernel, values); });
  };
  return std::apply(launch, values);
}

template <typename Function>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Function*) {
  *attributes = lockstep::cuda_emulation::AttributesOfKernels();
  return cudaSuccess;
}

template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* kernel, cudaFuncAttribute attribute, int value) {
  return lockstep::cuda_emulation::SetKernelAttribute(reinterpret_cast<const void*>(kernel),
                                                      attribute, value);
}
