#include "tests/support/cuda_emulation/runtime/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"

namespace lockstep::cuda_emulation {

Engine& TheEngine() {
  static auto* engine = new Engine;  // outlives whatever a test leaves to its destructors
  return *engine;
}

Engine::Engine() {
  const char* ipc = std::getenv("LOCKSTEP_CUDA_IPC");
  device.has_ipc = ipc == nullptr || std::string(ipc) != "0";
  if (const char* devices = std::getenv("LOCKSTEP_CUDA_DEVICES"); devices != nullptr) {
    char* name = nullptr;
    device.num_devices = static_cast<int>(std::strtol(devices, &name, 10));
    if (*name == ' ') device.name = name + 1;
  }
  if (const char* first = std::getenv("LOCKSTEP_CUDA_FIRST_DEVICE"); first != nullptr) {
    device.first_device = static_cast<int>(std::strtol(first, nullptr, 10));
  }
  if (const char* capability = std::getenv("LOCKSTEP_CUDA_CAPABILITY"); capability != nullptr) {
    char* minor = nullptr;
    device.compute_major = static_cast<int>(std::strtol(capability, &minor, 10));
    device.compute_minor =
        *minor == '.' ? static_cast<int>(std::strtol(minor + 1, nullptr, 10)) : 0;
  }
  if (const char* kernels = std::getenv("LOCKSTEP_CUDA_ECC_AFTER"); kernels != nullptr) {
    device.ecc_error_after_kernels = std::strtol(kernels, nullptr, 10);
  }
  if (const char* driver = std::getenv("LOCKSTEP_CUDA_DRIVER"); driver != nullptr) {
    char* minor = nullptr;
    device.driver_version = 1000 * static_cast<int>(std::strtol(driver, &minor, 10));
    if (*minor == '.') {
      device.driver_version += 10 * static_cast<int>(std::strtol(minor + 1, nullptr, 10));
    }
  }
  if (const char* gib = std::getenv("LOCKSTEP_CUDA_MEMORY_GIB"); gib != nullptr) {
    device.memory_bytes = static_cast<int64_t>(std::strtod(gib, nullptr) * 0x1p30);
  }
}

MakeWork Once(std::function<void()> action, Work::Kind kind) {
  return [action = std::move(action), kind]() -> Work {
    Work work = [action] {
      action();
      return true;
    };
    work.kind = kind;
    return work;
  };
}

std::shared_ptr<CUstream_st> Engine::AddStream(int device, bool non_blocking) {
  auto stream = std::make_shared<CUstream_st>();
  stream->device = device;
  stream->non_blocking = non_blocking;
  std::erase_if(streams_, [](const auto& old) { return old->destroyed && old->queue.empty(); });
  streams_.push_back(stream);
  return stream;
}

cudaError_t Engine::Find(cudaStream_t handle, std::shared_ptr<CUstream_st>* stream) {
  const auto is_it = [&](const std::shared_ptr<CUstream_st>& candidate) {
    return handle == nullptr ? candidate->is_default && candidate->device == CurrentDevice()
                             : candidate.get() == handle && !candidate->destroyed;
  };
  const auto found = std::find_if(streams_.begin(), streams_.end(), is_it);
  if (found != streams_.end()) {
    *stream = *found;
    return cudaSuccess;
  }
  if (handle != nullptr) return cudaErrorInvalidResourceHandle;
  *stream = AddStream(CurrentDevice(), false);
  (*stream)->is_default = true;
  return cudaSuccess;
}

// The default stream waits for all blocking ones, and they for it.
void Engine::AddImplicitWaits(CUstream_st& stream, std::vector<CUstream_st::After>& after) {
  for (const std::shared_ptr<CUstream_st>& other : streams_) {
    if (other.get() == &stream || other->device != stream.device) continue;
    if (stream.non_blocking || other->non_blocking) continue;
    if (stream.is_default || other->is_default) after.push_back({other, other->issued});
  }
}

cudaError_t Engine::Issue(CUstream_st& stream, std::string name, const MakeWork& make,
                          std::vector<CUstream_st::After> after) {
  if (stream.device != CurrentDevice()) return cudaErrorInvalidResourceHandle;
  if (stream.capture != nullptr) {
    if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    stream.capture->nodes.push_back(make);
    stream.past[&stream] = ++stream.capture->num_issued[&stream];
    return cudaSuccess;
  }
  if (stream.is_default) {
    for (const std::shared_ptr<CUstream_st>& other : streams_) {
      if (other->capture == nullptr || other->non_blocking) continue;
      other->capture->invalid = true;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  AddImplicitWaits(stream, after);
  stream.queue.push_back({std::move(name), make(), std::move(after)});
  ++stream.issued;
  ++num_changes_;
  if (issue == cuda_emulation::Issue::kImmediate) {
    while (Advance(stream) || AdvanceOthers(&stream)) {
    }
  }
  changed_.notify_all();
  return error();
}

namespace {

bool MayRun(const CUstream_st::Entry& entry) {
  return std::all_of(entry.after.begin(), entry.after.end(), [](const CUstream_st::After& after) {
    return after.stream->done >= after.ticket;
  });
}

}  // namespace

void Engine::BeginFollowers(CUstream_st& stream) {
  BeginEarly(stream.queue.front().work, [&](size_t n) -> const Work* {
    const bool may_run = n < stream.queue.size() && MayRun(stream.queue[n]);
    return may_run ? &stream.queue[n].work : nullptr;
  });
}

bool Engine::Advance(CUstream_st& stream) {
  if (stream.queue.empty()) return false;
  CUstream_st::Entry& entry = stream.queue.front();
  if (!MayRun(entry)) return false;
  BeginFollowers(stream);
  if (!entry.work()) return false;
  if (stream.queue.empty()) return true;  // a failure dropped it
  stream.queue.pop_front();
  ++stream.done;
  ++num_changes_;
  changed_.notify_all();
  return true;
}

bool Engine::AdvanceOthers(const CUstream_st* stream) {
  bool advanced = false;
  const std::vector<std::shared_ptr<CUstream_st>> streams = streams_;
  for (const std::shared_ptr<CUstream_st>& other : streams) {
    if (other.get() != stream) advanced |= Advance(*other);
  }
  return advanced;
}

bool Engine::AdvanceDependency(CUstream_st& stream) {
  if (stream.queue.empty()) return false;
  const std::vector<CUstream_st::After> after = stream.queue.front().after;
  for (const CUstream_st::After& one : after) {
    if (one.stream->done >= one.ticket) continue;
    if (Advance(*one.stream) || AdvanceDependency(*one.stream)) return true;
  }
  return false;
}

bool Engine::AdvanceTowards(CUstream_st& stream) {
  return Advance(stream) || AdvanceDependency(stream) || AdvanceOthers(&stream);
}

cudaError_t Engine::Await(std::unique_lock<std::mutex>& lock, CUstream_st& stream, int64_t ticket) {
  // Asked again and again: what other processes do is not told.
  const int64_t good_kernels = device.ecc_error_after_kernels;
  if (good_kernels > 0 && num_kernels_run >= good_kernels) has_lost_bits_ = true;
  if (has_lost_bits_) return error();
  return AwaitCondition(lock, "work in a stream", [&] {
    while (stream.done < ticket && failure_.empty()) {
      const int64_t before = num_changes_;
      if (!AdvanceTowards(stream) && num_changes_ == before) return false;
    }
    return true;
  });
}

cudaError_t Engine::AwaitDevice(std::unique_lock<std::mutex>& lock, int device) {
  const std::vector<std::shared_ptr<CUstream_st>> streams = streams_;
  for (const std::shared_ptr<CUstream_st>& stream : streams) {
    if (stream->device != device) continue;
    const cudaError_t error = Await(lock, *stream, stream->issued);
    if (error != cudaSuccess) return error;
  }
  return error();
}

bool Engine::AdvanceDevice(int device) {
  bool busy = false;
  const std::vector<std::shared_ptr<CUstream_st>> streams = streams_;
  for (const std::shared_ptr<CUstream_st>& stream : streams) {
    if (stream->device != device || stream->queue.empty()) continue;
    busy = true;
    AdvanceTowards(*stream);
  }
  return busy;
}

void Engine::KeepGoing() {
  if (std::exchange(keeps_going_, true)) return;
  std::thread([this] {
    int64_t seen = 0;
    while (true) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const std::lock_guard lock(mutex_);
      if (seen == num_changes_) AdvanceOthers(nullptr);
      seen = num_changes_;
    }
  }).detach();
}

void Engine::NotifyChange() {
  ++num_changes_;
  changed_.notify_all();
}

cudaError_t Engine::AwaitCondition(std::unique_lock<std::mutex>& lock, const char* what,
                                   const std::function<bool()>& done) {
  using std::chrono::steady_clock;
  int64_t changes = num_changes_;
  auto since = steady_clock::now();
  while (!done() && failure_.empty()) {
    changed_.wait_for(lock, std::chrono::microseconds(200));
    if (num_changes_ != changes) {
      changes = num_changes_;
      since = steady_clock::now();
    } else if (steady_clock::now() - since > std::chrono::duration<double>(patience_seconds)) {
      Fail(absl::StrFormat("a wait for %s that nothing ends: no work advanced for %g s%s", what,
                           patience_seconds, DescribeFronts()));
    }
  }
  return error();
}

cudaError_t Engine::RefuseWhileCapturing() {
  bool refused = false;
  for (const std::shared_ptr<Capture>& capture : captures_) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal &&
        capture->thread != std::this_thread::get_id()) {
      continue;
    }
    capture->invalid = true;
    refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

// What each stream stops at.
std::string Engine::DescribeFronts() const {
  std::string text;
  for (const std::shared_ptr<CUstream_st>& stream : streams_) {
    if (stream->queue.empty()) continue;
    absl::StrAppendFormat(&text, "; a stream of device %d is at %s, with %d more behind it",
                          stream->device, stream->queue.front().name, stream->queue.size() - 1);
  }
  return text;
}

void Engine::Fail(const std::string& what) {
  std::fprintf(stderr, "CUDA emulation: %s\n", what.c_str());
  if (failure_.empty()) failure_ = what;
  [[maybe_unused]] static const int at_exit = std::atexit([] {
    if (TheEngine().failure_.empty()) return;
    std::fprintf(stderr, "CUDA emulation: ended after a failure that no test took\n");
    std::fflush(nullptr);
    _exit(1);
  });
  for (const std::shared_ptr<CUstream_st>& stream : streams_) {
    // The entry that failed may be running: it is emptied, not destroyed.
    stream->done = stream->issued;
    if (!stream->queue.empty()) dropped_.push_back(std::move(stream->queue));
    stream->queue.clear();
  }
  changed_.notify_all();
}

std::string Engine::TakeFailure() {
  dropped_.clear();
  has_lost_bits_ = false;
  return std::exchange(failure_, "");
}

int64_t Engine::NumQueued() const {
  int64_t count = 0;
  for (const std::shared_ptr<CUstream_st>& stream : streams_) {
    count += static_cast<int64_t>(stream->queue.size());
  }
  return count;
}

}  // namespace lockstep::cuda_emulation
