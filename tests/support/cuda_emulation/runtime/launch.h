// Kernel launches.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/support/cuda_emulation/runtime/runtime_api.h"

namespace lockstep::cuda_emulation {

// Of a kernel: its bytes and, if it is a pointer, where it points to.
struct Argument {
  std::span<const char> bytes;
  const void* pointer;
};
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::initializer_list<Argument> arguments, std::function<void()> thread);
// Registers are not emulated; these are what a block of 384 threads can have.
cudaError_t AttributesOfKernels(cudaFuncAttributes* attributes);
cudaError_t SetKernelAttribute(const void* kernel, cudaFuncAttribute attribute, int value);

template <typename T>
Argument ArgumentOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>, "a kernel's arguments are copied as bytes");
  const void* pointer = nullptr;
  if constexpr (std::is_pointer_v<T> && !std::is_function_v<std::remove_pointer_t<T>>) {
    pointer = value;
  }
  return {{reinterpret_cast<const char*>(&value), sizeof(T)}, pointer};
}

}  // namespace lockstep::cuda_emulation

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((0 + ... + sizeof(Parameters)) <= 4096, "a kernel takes 4 KB of arguments at most");
  const std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  const auto launch = [&](const auto&... value) {
    return lockstep::cuda_emulation::LaunchKernel(*config, reinterpret_cast<const void*>(kernel),
                                                  {lockstep::cuda_emulation::ArgumentOf(value)...},
                                                  [kernel, values] { std::apply(kernel, values); });
  };
  return std::apply(launch, values);
}

template <typename Function>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Function*) {
  return lockstep::cuda_emulation::AttributesOfKernels(attributes);
}

template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* kernel, cudaFuncAttribute attribute, int value) {
  return lockstep::cuda_emulation::SetKernelAttribute(reinterpret_cast<const void*>(kernel),
                                                      attribute, value);
}
