// Values from any thread for one thread that sleeps in poll().
//
// Put is thread-safe and never blocks; fd() becomes readable when there is something; TakeAll
// belongs to the receiving thread.
#pragma once

#include <sys/eventfd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/fd.h"

namespace lockstep {

template <typename T>
class Mailbox {
 public:
  Mailbox() : wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    LS_CHECK(wakeup_.valid()) << "eventfd";
  }

  void Put(T value) {
    std::lock_guard<std::mutex> lock(mutex_);
    values_.push_back(std::move(value));
    if (values_.size() == 1) ::eventfd_write(wakeup_.get(), 1);
  }

  std::vector<T> TakeAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    eventfd_t ignored = 0;
    ::eventfd_read(wakeup_.get(), &ignored);
    return std::exchange(values_, {});
  }

  int fd() const { return wakeup_.get(); }

 private:
  Fd wakeup_;
  std::mutex mutex_;
  std::vector<T> values_;
};

}  // namespace lockstep
