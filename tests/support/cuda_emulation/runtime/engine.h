// The device's work: streams, what is queued in them, captures, failures.
//
// One lock for the whole process; work runs with it held, by whichever thread waits for it (Await)
// or issues it (Issue::kImmediate). Ranks that are threads of one process thus drive each other's
// streams, so that a rank's collective goes on although its own thread waits for something else.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/cuda_emulation/emulation.h"
#include "tests/support/cuda_emulation/runtime/runtime_types.h"

namespace lockstep::cuda_emulation {

// What a stream or a graph has to do.
struct Work {
  Work() = default;
  template <typename Go>
  requires std::is_invocable_r_v<bool, Go&> Work(Go go)
      : go(std::move(go)) {}  // NOLINT: any such call is work
  bool operator()() { return go(); }
  explicit operator bool() const { return go != nullptr; }

  // False: it cannot be done yet (a peer has not come); it is asked again.
  std::function<bool()> go;
  enum class Kind { kKernel, kEvent, kOther } kind = Kind::kOther;
  // Of a kernel that may begin while the one before it runs: does what it does before it waits.
  std::function<void()> begin = nullptr;
};
// Kernels that may begin while `first` runs, before it does. A GPU sets no limit to how many: each
// may begin as soon as all blocks of the one before it run. So many are more than lie between a
// step's first kernel and the one that reads most before it waits (norm, gathering, product, RoPE,
// attention). That events between them are no hindrance is only supposed.
template <typename WorkAfter>  // a pointer to the nth behind `first`, null if there is none
void BeginEarly(const Work& first, const WorkAfter& work_after) {
  constexpr int kMostAhead = 8;
  if (first.kind != Work::Kind::kKernel) return;
  for (int n = 1, num_begun = 0; num_begun < kMostAhead; ++n) {
    const Work* work = work_after(n);
    if (work == nullptr) return;
    if (work->kind == Work::Kind::kEvent) continue;
    if (work->begin == nullptr) return;
    work->begin();
    ++num_begun;
  }
}
// Makes the work anew for each launch of the graph it was captured in.
using MakeWork = std::function<Work()>;
MakeWork Once(std::function<void()> action, Work::Kind kind = Work::Kind::kOther);

struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  CUstream_st* origin;
  bool invalid = false;
  std::vector<MakeWork> nodes;  // in the order of issue, which respects every dependency
  std::map<CUstream_st*, int64_t> num_issued;
};
// How much of each captured stream is known to come before some point.
using CapturedPast = std::map<CUstream_st*, int64_t>;

}  // namespace lockstep::cuda_emulation

struct CUstream_st {
  struct After {
    std::shared_ptr<CUstream_st> stream;
    int64_t ticket;
  };
  struct Entry {
    std::string name;
    lockstep::cuda_emulation::Work work;
    std::vector<After> after;
  };
  int device = 0;
  bool is_default = false;    // the legacy default stream of its device
  bool non_blocking = false;  // takes no part in the default stream's implicit waits
  bool destroyed = false;
  int64_t issued = 0;  // tickets given
  int64_t done = 0;
  std::deque<Entry> queue;
  std::shared_ptr<lockstep::cuda_emulation::Capture> capture;
  lockstep::cuda_emulation::CapturedPast past;
};

namespace lockstep::cuda_emulation {

class Engine {
 public:
  Engine();
  std::mutex& mutex() { return mutex_; }

  // The stream of this handle, nullptr being the default one of the current device.
  cudaError_t Find(cudaStream_t handle, std::shared_ptr<CUstream_st>* stream);
  std::shared_ptr<CUstream_st> AddStream(int device, bool non_blocking);
  // name: for messages.
  cudaError_t Issue(CUstream_st& stream, std::string name, const MakeWork& make,
                    std::vector<CUstream_st::After> after = {});
  // One entry of `stream`; or, while that must wait, of a stream it waits for; or of each other
  // stream (a peer's, whose thread is elsewhere).
  bool AdvanceTowards(CUstream_st& stream);
  cudaError_t Await(std::unique_lock<std::mutex>& lock, CUstream_st& stream, int64_t ticket);
  cudaError_t AwaitDevice(std::unique_lock<std::mutex>& lock, int device);
  // False when the device's streams are empty; otherwise their work goes on as far as it can.
  bool AdvanceDevice(int device);
  // From now on work is done even if nobody waits for it, a few milliseconds late: other processes
  // may wait for it.
  void KeepGoing();
  // Something that work may wait for has changed.
  void NotifyChange();
  // For waits of other kinds: until done() or nothing advances any more.
  cudaError_t AwaitCondition(std::unique_lock<std::mutex>& lock, const char* what,
                             const std::function<bool()>& done);

  // cudaErrorStreamCaptureUnsupported, and the capture is spoilt, when a call that waits or
  // allocates is made where a capture forbids it.
  cudaError_t RefuseWhileCapturing();
  std::vector<std::shared_ptr<Capture>>& captures() { return captures_; }

  void Fail(const std::string& what);
  cudaError_t error() const {
    if (has_lost_bits_) return cudaErrorECCUncorrectable;
    return failure_.empty() ? cudaSuccess : cudaErrorLaunchFailure;
  }
  std::string TakeFailure();

  cuda_emulation::Issue issue = cuda_emulation::Issue::kDeferred;
  Device device;
  double patience_seconds = 30;
  int64_t num_kernels_run = 0;
  int64_t num_kernels_begun_early = 0;
  int64_t num_products = 0;
  int64_t num_fast_products = 0;
  int64_t num_products_added_in_output = 0;
  int64_t NumQueued() const;
  template <typename Action>
  void ForEachStream(Action action) {
    for (const std::shared_ptr<CUstream_st>& stream : streams_) action(*stream);
  }

 private:
  bool Advance(CUstream_st& stream);
  void BeginFollowers(CUstream_st& stream);
  std::string DescribeFronts() const;
  bool AdvanceDependency(CUstream_st& stream);
  bool AdvanceOthers(const CUstream_st* stream);
  void AddImplicitWaits(CUstream_st& stream, std::vector<CUstream_st::After>& after);

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_changes_ = 0;
  bool keeps_going_ = false;
  std::vector<std::shared_ptr<CUstream_st>> streams_;
  std::vector<std::shared_ptr<Capture>> captures_;
  std::string failure_;
  bool has_lost_bits_ = false;  // Device::ecc_error_after_kernels, once a wait has met with it
  std::vector<std::deque<CUstream_st::Entry>> dropped_;  // by a failure; one of them may be running
};

Engine& TheEngine();

int CurrentDevice();
// Whether the calling thread has chosen one; else device 0 is its current one.
bool HasChosenDevice();
// What the calling thread's cudaGetLastError tells.
cudaError_t Remember(cudaError_t error);

// A call of the API: with the lock, refused after a failure, its error remembered.
template <typename Body>
cudaError_t Call(Body body) {
  std::unique_lock lock(TheEngine().mutex());
  if (TheEngine().error() != cudaSuccess) return Remember(TheEngine().error());
  return Remember(body(lock));
}

}  // namespace lockstep::cuda_emulation
