#include "kernels/base/usable_cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace lockstep {

int NumUsableCores() {
  cpu_set_t usable;
  const int count = sched_getaffinity(0, sizeof(usable), &usable) == 0
                        ? CPU_COUNT(&usable)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(count, 1);
}

}  // namespace lockstep
