#include "launcher/base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace lockstep {
namespace {

// More would make programs that close all descriptors one by one slow; ranks inherit this.
constexpr rlim_t kMaxDescriptors = 65536;

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min(limit.rlim_max, kMaxDescriptors);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // refused: it stays as it was
}

}  // namespace lockstep
