#include "launcher/base/background_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace lockstep {
namespace {

// 0, or why not all of it could be written.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {  // somebody shares it, and does not wait
      pollfd writable = {fd, POLLOUT, 0};
      ::poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

struct BackgroundWriter::State {
  explicit State(int descriptor, std::function<void(const std::string&)> listener)
      : fd(descriptor), on_loss(std::move(listener)) {}

  const int fd;
  const std::function<void(const std::string&)> on_loss;
  absl::Mutex mutex;
  std::string waiting ABSL_GUARDED_BY(mutex);
  int64_t num_lost ABSL_GUARDED_BY(mutex) = 0;  // texts for which there was no room
  bool is_writing ABSL_GUARDED_BY(mutex) = false;
  bool is_over ABSL_GUARDED_BY(mutex) = false;  // on_loss may be gone, too

  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !waiting.empty() || is_over; }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return waiting.empty() && !is_writing;
  }
};

BackgroundWriter::BackgroundWriter(int fd, std::function<void(const std::string&)> on_loss)
    : state_(std::make_shared<State>(fd, std::move(on_loss))) {
  std::thread([state = state_] { Run(state); }).detach();
}

BackgroundWriter::~BackgroundWriter() {
  Flush();
  absl::MutexLock lock(&state_->mutex);
  state_->is_over = true;
}

void BackgroundWriter::Write(std::string text) {
  absl::MutexLock lock(&state_->mutex);
  if (state_->waiting.size() + text.size() > kMostWaitingBytes) {
    ++state_->num_lost;
  } else {
    state_->waiting += text;
  }
}

void BackgroundWriter::Flush() {
  absl::MutexLock lock(&state_->mutex);
  state_->mutex.AwaitWithTimeout(absl::Condition(state_.get(), &State::IsIdle), kPatience);
}

void BackgroundWriter::Run(const std::shared_ptr<State>& state) {
  int last_error = 0;
  absl::MutexLock lock(&state->mutex);
  while (true) {
    state->is_writing = false;
    state->mutex.Await(absl::Condition(state.get(), &State::HasWork));
    if (state->is_over) return;
    const std::string text = std::exchange(state->waiting, "");
    state->is_writing = true;
    state->mutex.Unlock();
    const int error = last_error == EPIPE ? EPIPE : WriteAll(state->fd, text);
    state->mutex.Lock();
    const int64_t num_lost = std::exchange(state->num_lost, 0);
    if (state->is_over) return;
    if (error != 0 && error != last_error) {
      state->on_loss(error == EPIPE ? "its reader is gone; nothing more is printed there"
                                    : absl::StrCat("lines are lost: ", std::strerror(error)));
    } else if (num_lost > 0) {
      state->on_loss(absl::StrCat("nobody read it for a while: ", num_lost, " lines are lost"));
    }
    last_error = error;
  }
}

}  // namespace lockstep
