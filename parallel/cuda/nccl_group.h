// NcclGroup: one rank's handle of an NCCL communicator, which any thread may end.
//
// The communicator is a non-blocking one (ncclConfig_t::blocking = 0): no call of NCCL waits for a
// peer, so one lock guards the handle, and what takes long is asked for again and again with the
// lock given back in between. A thread of the group's own asks for errors that show while nobody
// calls (a network that fails under a kernel that waits for it) and ends the group, upon which its
// kernels return. That thread alone calls ncclCommAbort, without the lock: it tells the kernels to
// return at once, but returns itself only when they have, with all that is queued before them, and
// when no graph holds work of the communicator (NCCL 2.28.9, init.cc, commDestroySync; in this
// mode, too). So the groups of a device, whose work waits for each other's, end beside each other.
// Cost of this mode: NCCL (2.26.2 to 2.30.7, group.cc) starts a thread for every group of calls,
// recorded ones as well; steps that replay a graph do not pay it, messages between stages do, while
// kernels run.
// Source: NCCL User Guide, "Fault Tolerance", "Thread Safety".
#pragma once

#include <nccl.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace lockstep::cuda {

class NcclGroup;

// The groups of one rank's device, which end together: a sum that has come to nothing must not be
// sent on through another group by the work that is queued behind it.
struct NcclSiblings {
  std::mutex mutex;                // of all of them
  std::vector<NcclGroup*> groups;  // those that have not ended
};

class NcclGroup {
 public:
  // What is asked of the group, for messages.
  struct Operation {
    const char* name = "";
    int64_t bytes = 0;
    int peer = -1;  // of sends and receives
  };

  struct Membership {
    int max_thread_blocks = 0;  // of NCCL's kernels; 0: its own choice
    std::shared_ptr<NcclSiblings> siblings;
    std::chrono::milliseconds patience;
  };
  // The group of `bootstrap`, whose ranks all call it, each with its device current; `bootstrap`
  // hands round the group's id and is not kept. UNAVAILABLE when the others have not come within
  // `patience`.
  static absl::StatusOr<std::unique_ptr<NcclGroup>> Join(Communicator& bootstrap,
                                                         const Membership& membership);
  // On a thread whose device is the group's. Waits for what is under way, `kGroupFarewell` at most,
  // or, when the group has ended, until its kernels have returned. No graph may hold work of the
  // group any more: NCCL would wait for it.
  ~NcclGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Makes the call and waits until it is launched (not until it is done). UNAVAILABLE, naming rank
  // and operation, when it fails, when it is not launched within `patience` or when the group has
  // ended; the group is then dead.
  absl::Status Launch(const Operation& operation, std::chrono::milliseconds patience,
                      absl::FunctionRef<ncclResult_t(ncclComm_t)> call);

  // Names what is asked of the group otherwise than by Launch, for messages. UNAVAILABLE when the
  // group has ended.
  absl::Status Note(const Operation& operation);
  // Called once, when the group ends otherwise than by its destructor: what lets waits of others'
  // go that hang on this group. May be on any thread; may not call the group.
  void CallAtEnd(std::function<void()> action);

  // Any thread; does not wait. The first reason stays. The siblings end, too; kernels that run
  // return soon, their results being undefined.
  void End(const std::string& why);
  // OK, or what ended the group; asks NCCL.
  absl::Status Health();

 private:
  NcclGroup(int rank, int size, std::shared_ptr<NcclSiblings> siblings, int device)
      : rank_(rank),
        size_(size),
        device_(device),
        siblings_(std::move(siblings)),
        mutex_(siblings_->mutex) {}
  absl::Status Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result,
                      std::chrono::milliseconds patience);
  absl::Status EndLocked(const std::string& why);
  void TakeNote(const absl::Status& why);
  void AskForErrors();
  std::string Describe(const Operation& operation) const;
  void Watch();

  const int rank_;
  const int size_;
  const int device_;
  const std::shared_ptr<NcclSiblings> siblings_;
  std::mutex& mutex_;  // guards all that follows
  std::condition_variable leaving_changed_;
  ncclComm_t comm_ = nullptr;  // null once the group has ended
  absl::Status health_;
  Operation operation_;  // the last one
  std::function<void()> at_end_;
  bool is_settling_ = false;  // somebody asks already
  bool is_leaving_ = false;
  bool ends_last_ = false;  // of the siblings
  std::thread watcher_;
};

}  // namespace lockstep::cuda
