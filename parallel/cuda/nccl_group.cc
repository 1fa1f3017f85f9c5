#include "parallel/cuda/nccl_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kGroupFarewell{10000};
constexpr milliseconds kWatchInterval{50};
// For the siblings' threads, to tell their kernels.
constexpr milliseconds kAheadOfOthers{20};

// Between two questions: short while an answer is likely, long when a peer is awaited.
void Pause(steady_clock::duration waited) {
  if (waited < std::chrono::microseconds(200)) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::clamp<steady_clock::duration>(
        waited / 8, std::chrono::microseconds(50), milliseconds(5)));
  }
}

// Rank 0's id, or why it has none.
absl::StatusOr<ncclUniqueId> ShareId(Communicator& bootstrap) {
  struct Message {
    int32_t result = ncclSuccess;
    ncclUniqueId id = {};
  };
  Message mine;
  if (bootstrap.rank() == 0) mine.result = ncclGetUniqueId(&mine.id);
  std::vector<Message> all(static_cast<size_t>(bootstrap.size()));
  RETURN_IF_ERROR(bootstrap.AllGather(&mine, sizeof(mine), all.data()));
  if (all[0].result != ncclSuccess) {
    return absl::UnavailableError(absl::StrCat(
        "NCCL cannot start: ", ncclGetErrorString(static_cast<ncclResult_t>(all[0].result))));
  }
  return all[0].id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Join(Communicator& bootstrap,
                                                           const Membership& membership) {
  ASSIGN_OR_RETURN(const ncclUniqueId id, ShareId(bootstrap));
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "asking for the GPU in use"));
  std::unique_ptr<NcclGroup> group(
      new NcclGroup(bootstrap.rank(), bootstrap.size(), membership.siblings, device));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (membership.max_thread_blocks > 0) config.maxCTAs = membership.max_thread_blocks;
  {
    std::unique_lock lock(group->mutex_);
    group->operation_ = {"joining the group"};
    group->siblings_->groups.push_back(group.get());
    const ncclResult_t result =
        ncclCommInitRankConfig(&group->comm_, group->size_, id, group->rank_, &config);
    RETURN_IF_ERROR(group->Settle(lock, result, membership.patience));
  }
  group->watcher_ = std::thread([group = group.get()] { group->Watch(); });
  return group;
}

NcclGroup::~NcclGroup() {
  std::unique_lock lock(mutex_);
  is_leaving_ = true;
  std::erase(siblings_->groups, this);
  leaving_changed_.notify_all();
  if (comm_ != nullptr && health_.ok()) {
    operation_ = {"leaving the group"};
    // What fails ends the group, which is what is wanted.
    if (Settle(lock, ncclCommFinalize(comm_), kGroupFarewell).ok()) {
      ncclCommDestroy(comm_);
      comm_ = nullptr;
    }
  }
  lock.unlock();
  if (watcher_.joinable()) watcher_.join();
  if (comm_ != nullptr) ncclCommAbort(comm_);  // it was not joined, or could not be left
}

absl::Status NcclGroup::Launch(const Operation& operation, milliseconds patience,
                               absl::FunctionRef<ncclResult_t(ncclComm_t)> call) {
  std::unique_lock lock(mutex_);
  if (!health_.ok()) return health_;
  operation_ = operation;
  return Settle(lock, call(comm_), patience);
}

absl::Status NcclGroup::Note(const Operation& operation) {
  std::lock_guard lock(mutex_);
  if (health_.ok()) operation_ = operation;
  return health_;
}

void NcclGroup::CallAtEnd(std::function<void()> action) {
  std::lock_guard lock(mutex_);
  at_end_ = std::move(action);
  if (!health_.ok()) at_end_();
}

// The result of a call, once it is known.
absl::Status NcclGroup::Settle(std::unique_lock<std::mutex>& lock, ncclResult_t result,
                               milliseconds patience) {
  const auto began = steady_clock::now();
  is_settling_ = true;
  while (result == ncclInProgress && health_.ok()) {
    const auto waited = steady_clock::now() - began;
    if (waited > patience) {
      return EndLocked(
          absl::StrFormat("not begun after %d ms: are all ranks alive?", patience.count()));
    }
    lock.unlock();
    Pause(waited);
    lock.lock();
    if (health_.ok()) {
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) result = asked;
    }
  }
  is_settling_ = false;
  if (!health_.ok() || result == ncclSuccess) return health_;
  return EndLocked(ncclGetErrorString(result));
}

std::string NcclGroup::Describe(const Operation& operation) const {
  std::string text = absl::StrFormat("rank %d of %d: %s", rank_, size_, operation.name);
  if (operation.bytes > 0) absl::StrAppend(&text, " of ", operation.bytes, " bytes");
  if (operation.peer >= 0) absl::StrAppend(&text, ", peer ", operation.peer);
  return text;
}

absl::Status NcclGroup::EndLocked(const std::string& why) {
  is_settling_ = false;
  if (!health_.ok()) return health_;
  const char* told = comm_ == nullptr ? "" : ncclGetLastError(comm_);
  const bool has_more = told != nullptr && *told != '\0';
  const absl::Status ended = absl::UnavailableError(
      absl::StrCat(Describe(operation_), ": ", why, has_more ? ": " : "", has_more ? told : ""));
  for (NcclGroup* sibling : std::vector<NcclGroup*>(siblings_->groups)) {
    if (sibling == this) continue;
    sibling->TakeNote(ended);
    ends_last_ = true;
  }
  TakeNote(ended);
  return health_;
}

void NcclGroup::TakeNote(const absl::Status& why) {
  health_ = why;
  if (at_end_ != nullptr) at_end_();
  std::erase(siblings_->groups, this);
  leaving_changed_.notify_all();
}

void NcclGroup::End(const std::string& why) {
  std::lock_guard lock(mutex_);
  EndLocked(why).IgnoreError();
}

absl::Status NcclGroup::Health() {
  std::lock_guard lock(mutex_);
  AskForErrors();
  return health_;
}

// Those that show while no call is under way.
void NcclGroup::AskForErrors() {
  if (is_settling_ || !health_.ok()) return;
  ncclResult_t error = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &error);
  if (asked != ncclSuccess) error = asked;
  if (error != ncclSuccess && error != ncclInProgress) {
    EndLocked(ncclGetErrorString(error)).IgnoreError();
  }
}

void NcclGroup::Watch() {
  std::unique_lock lock(mutex_);
  while (!leaving_changed_.wait_for(lock, kWatchInterval,
                                    [&] { return is_leaving_ || !health_.ok(); })) {
    AskForErrors();
  }
  if (health_.ok()) return;
  ncclComm_t comm = std::exchange(comm_, nullptr);
  // First those whose work waits behind what this group's end lets go on.
  const bool gives_way = ends_last_ && !is_leaving_;
  lock.unlock();
  if (gives_way) std::this_thread::sleep_for(kAheadOfOthers);
  // NCCL chooses its caller's device again when it is through (2.28.9, group.cc), and choosing one
  // takes memory there: of device 0, in a thread that has none of its own.
  cudaSetDevice(device_);
  if (comm != nullptr) ncclCommAbort(comm);
}

}  // namespace lockstep::cuda
