#include "launcher/base/host_name.h"

#include <unistd.h>

#include <cstdlib>

namespace lockstep {

std::string HostName() {
  if (const char* node = std::getenv("SLURMD_NODENAME")) return node;
  return SystemHostName();
}

std::string SystemHostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "this host";
}

}  // namespace lockstep
