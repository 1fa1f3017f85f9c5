#include "launcher/job/private_network.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/fd.h"

namespace lockstep {
namespace {

bool WriteFile(const char* path, const char* data, size_t size) {
  const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() && ::write(file.get(), data, size) == static_cast<ssize_t>(size);
}

bool BringLoopbackUp() {
  const Fd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::memcpy(request.ifr_name, "lo", sizeof("lo"));
  if (!any.valid() || ::ioctl(any.get(), SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  return ::ioctl(any.get(), SIOCSIFFLAGS, &request) == 0;
}

}  // namespace

// Source: user_namespaces(7): an unprivileged process may map its own ids alone, and its group only
// after it gave up setgroups.
PrivateNetwork::PrivateNetwork()
    : uid_map_(absl::StrCat(::geteuid(), " ", ::geteuid(), " 1")),
      gid_map_(absl::StrCat(::getegid(), " ", ::getegid(), " 1")) {}

bool PrivateNetwork::Enter() const {
  if (::unshare(CLONE_NEWNET) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
    if (!WriteFile("/proc/self/setgroups", "deny", 4) ||
        !WriteFile("/proc/self/uid_map", uid_map_.data(), uid_map_.size()) ||
        !WriteFile("/proc/self/gid_map", gid_map_.data(), gid_map_.size())) {
      return false;
    }
  }
  return BringLoopbackUp();
}

bool PrivateNetwork::IsPossible() const {
  const pid_t pid = ::fork();
  if (pid == 0) _exit(Enter() ? 0 : 1);
  int status = 0;
  return pid > 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
}

}  // namespace lockstep
