#include "parallel/nccl_environment.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep {

void LeaveRecordingsUnregistered() { ::setenv("NCCL_GRAPH_REGISTER", "0", 0); }

void ConnectOver(const std::vector<std::string>& interfaces) {
  // "=": these names, not all that begin so.
  ::setenv("NCCL_SOCKET_IFNAME", absl::StrCat("=", absl::StrJoin(interfaces, ",")).c_str(), 0);
}

void LetRanksShareAGpu() {
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  ::setenv("NCCL_HOSTID", absl::StrCat(host, "-", ::getpid()).c_str(), 0);
  ::setenv("NCCL_NET", "Socket", 0);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  ::setenv("NCCL_MNNVL_ENABLE", "0", 0);
}

}  // namespace lockstep
