// Files' permissions as they are for users who are not root.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace lockstep::testing {

// Gives up what root may do to others' files while it lives; who is not root has nothing to give
// up.
class Unprivileged {
 public:
  Unprivileged() : was_root_(::geteuid() == 0) {
    if (was_root_) Become(65534);
  }
  ~Unprivileged() {
    if (was_root_) Become(0);
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  static void Become(uid_t user) {
    if (::seteuid(user) == 0) return;
    std::perror("seteuid");
    std::abort();
  }

  const bool was_root_;
};

}  // namespace lockstep::testing
