// Ranks as threads of one process. A collective publishes its pointers, meets the others at a
// barrier, works on its own share of the elements in everybody's memory, and meets them again.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/usable_cores.h"
#include "parallel/communicator.h"
#include "parallel/process_grid.h"
#include "parallel/tree_sum.h"

namespace lockstep {
namespace {

// Spinning helps only while every thread has a core of its own.
constexpr auto kSpin = std::chrono::microseconds(20);

// What one thread publishes and others read between two barriers.
struct Published {
  float* reduce = nullptr;
  const void* gather = nullptr;
  int64_t size = 0;
};

// Messages from one rank to another, in order. Spent buffers are kept for the next message.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<std::vector<std::byte>> messages;
  std::vector<std::vector<std::byte>> spare;
};

class Group {
 public:
  Group(int size, bool may_spin)
      : size_(size),
        may_spin_(may_spin),
        published_(static_cast<size_t>(size)),
        mailboxes_(static_cast<size_t>(size) * static_cast<size_t>(size)) {}

  int size() const { return size_; }
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  Published& published(int rank) { return published_[static_cast<size_t>(rank)]; }
  Mailbox& mailbox(int from, int to) {
    return mailboxes_[static_cast<size_t>(from) * static_cast<size_t>(size_) +
                      static_cast<size_t>(to)];
  }

  absl::Status Meet();
  void Abort();
  absl::Status Aborted() const { return absl::UnavailableError("the group was aborted"); }

 private:
  bool SpinWhileAt(uint64_t generation) const;

  const int size_;
  const bool may_spin_;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::condition_variable all_here_;
  int num_here_ = 0;                     // guarded by mutex_
  std::atomic<uint64_t> generation_{0};  // written under mutex_
  std::vector<Published> published_;
  std::vector<Mailbox> mailboxes_;
};

// True when the generation passed or the group died while spinning.
bool Group::SpinWhileAt(uint64_t generation) const {
  if (!may_spin_) return false;
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (generation_.load(std::memory_order_acquire) != generation || aborted()) return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

absl::Status Group::Meet() {
  uint64_t generation;
  {
    std::lock_guard lock(mutex_);
    if (aborted()) return Aborted();
    generation = generation_.load(std::memory_order_relaxed);
    if (++num_here_ == size_) {
      num_here_ = 0;
      generation_.store(generation + 1, std::memory_order_release);
      all_here_.notify_all();
      return absl::OkStatus();
    }
  }
  if (!SpinWhileAt(generation)) {
    std::unique_lock lock(mutex_);
    all_here_.wait(lock, [&] { return generation_.load() != generation || aborted(); });
  }
  return generation_.load(std::memory_order_acquire) != generation ? absl::OkStatus() : Aborted();
}

void Group::Abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_.store(true, std::memory_order_release);
  }
  all_here_.notify_all();
  for (Mailbox& mailbox : mailboxes_) {
    { std::lock_guard lock(mailbox.mutex); }  // a receiver is either before its check or waiting
    mailbox.arrived.notify_all();
  }
}

// All groups of one grid: one failing rank ends the waits of every other.
struct World {
  std::deque<Group> groups;
  void Abort() {
    for (Group& group : groups) group.Abort();
  }
};

class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(std::shared_ptr<World> world, Group& group, int rank)
      : world_(std::move(world)),
        group_(group),
        rank_(rank),
        parts_(static_cast<size_t>(group.size())) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override;
  absl::Status ReduceScatterSum(float* data, int64_t share) override;
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override;
  absl::Status Recv(int peer, void* data, int64_t bytes) override;
  bool Probe(int peer) override;
  absl::Status Barrier() override { return group_.Meet(); }
  void Abort() override { world_->Abort(); }

 private:
  absl::Status PublishAndMeet(const Published& mine);
  absl::Status PublishTerms(float* data, int64_t count);
  absl::Status CheckPeer(int peer) const;

  const std::shared_ptr<World> world_;  // shared: the last rank to go takes the groups with it
  Group& group_;
  const int rank_;
  std::vector<float*> parts_;  // every rank's data during a reduction
};

absl::Status InProcessCommunicator::PublishAndMeet(const Published& mine) {
  group_.published(rank_) = mine;
  if (absl::Status status = group_.Meet(); !status.ok()) return status;
  for (int rank = 0; rank < size(); ++rank) {
    const int64_t theirs = group_.published(rank).size;
    if (theirs != mine.size) {
      return absl::InternalError(
          absl::StrFormat("rank %d joined a collective of size %d that rank %d calls with size %d",
                          rank, theirs, rank_, mine.size));
    }
  }
  return absl::OkStatus();
}

absl::Status InProcessCommunicator::PublishTerms(float* data, int64_t count) {
  RETURN_IF_ERROR(PublishAndMeet({.reduce = data, .size = count}));
  for (int rank = 0; rank < size(); ++rank) {
    parts_[static_cast<size_t>(rank)] = group_.published(rank).reduce;
  }
  return absl::OkStatus();
}

absl::Status InProcessCommunicator::ReduceScatterSum(float* data, int64_t share) {
  RETURN_IF_ERROR(PublishTerms(data, share * size()));
  TreeSum(parts_, rank_ * share, (rank_ + 1) * share, data + rank_ * share);
  return group_.Meet();
}

absl::Status InProcessCommunicator::AllReduceSum(float* data, int64_t count) {
  RETURN_IF_ERROR(PublishTerms(data, count));
  // Shares of the elements, not of the ranks' terms: nobody else touches elements [begin, end) of
  // any part.
  const int64_t share = (count + size() - 1) / size();
  const int64_t begin = std::min(count, rank_ * share);
  const int64_t end = std::min(count, begin + share);
  TreeSumInPlace(parts_, begin, end);
  for (size_t rank = 1; rank < parts_.size() && begin < end; ++rank) {
    std::copy(parts_[0] + begin, parts_[0] + end, parts_[rank] + begin);
  }
  return group_.Meet();
}

absl::Status InProcessCommunicator::AllGather(const void* mine, int64_t bytes, void* all) {
  if (absl::Status status = PublishAndMeet({.gather = mine, .size = bytes}); !status.ok()) {
    return status;
  }
  for (int rank = 0; rank < size() && bytes > 0; ++rank) {
    std::byte* slot = static_cast<std::byte*>(all) + rank * bytes;
    const void* theirs = group_.published(rank).gather;
    if (theirs != slot) std::memcpy(slot, theirs, static_cast<size_t>(bytes));
  }
  return group_.Meet();
}

absl::Status InProcessCommunicator::CheckPeer(int peer) const {
  if (peer >= 0 && peer < size() && peer != rank_) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("rank %d of %d has no peer %d", rank_, size(), peer));
}

absl::Status InProcessCommunicator::Send(int peer, const void* data, int64_t bytes) {
  if (absl::Status status = CheckPeer(peer); !status.ok()) return status;
  if (group_.aborted()) return group_.Aborted();
  Mailbox& mailbox = group_.mailbox(rank_, peer);
  std::vector<std::byte> message;
  {
    std::lock_guard lock(mailbox.mutex);
    if (!mailbox.spare.empty()) {
      message = std::move(mailbox.spare.back());
      mailbox.spare.pop_back();
    }
  }
  const std::byte* first = static_cast<const std::byte*>(data);
  message.assign(first, first + bytes);
  {
    std::lock_guard lock(mailbox.mutex);
    mailbox.messages.push_back(std::move(message));
  }
  mailbox.arrived.notify_one();
  return absl::OkStatus();
}

absl::Status InProcessCommunicator::Recv(int peer, void* data, int64_t bytes) {
  if (absl::Status status = CheckPeer(peer); !status.ok()) return status;
  Mailbox& mailbox = group_.mailbox(peer, rank_);
  std::unique_lock lock(mailbox.mutex);
  mailbox.arrived.wait(lock, [&] { return !mailbox.messages.empty() || group_.aborted(); });
  if (group_.aborted()) return group_.Aborted();
  std::vector<std::byte> message = std::move(mailbox.messages.front());
  mailbox.messages.pop_front();
  if (std::ssize(message) != bytes) {
    return absl::InternalError(absl::StrFormat("rank %d sent %d bytes to rank %d, which expects %d",
                                               peer, message.size(), rank_, bytes));
  }
  if (bytes > 0) std::memcpy(data, message.data(), static_cast<size_t>(bytes));
  mailbox.spare.push_back(std::move(message));
  return absl::OkStatus();
}

bool InProcessCommunicator::Probe(int peer) {
  if (!CheckPeer(peer).ok()) return false;
  Mailbox& mailbox = group_.mailbox(peer, rank_);
  std::lock_guard lock(mailbox.mutex);
  return !mailbox.messages.empty();
}

}  // namespace

std::vector<RankGroups> MakeInProcessGroups(const ProcessGrid& grid) {
  const bool may_spin = grid.world_size() <= NumUsableCores();
  auto world = std::make_shared<World>();
  std::vector<Group*> tp_groups, pp_groups;
  for (int stage = 0; stage < grid.pp(); ++stage) {
    tp_groups.push_back(&world->groups.emplace_back(grid.tp(), may_spin));
  }
  for (int tp_rank = 0; tp_rank < grid.tp(); ++tp_rank) {
    pp_groups.push_back(&world->groups.emplace_back(grid.pp(), may_spin));
  }
  std::vector<RankGroups> ranks;
  for (int rank = 0; rank < grid.world_size(); ++rank) {
    const int stage = grid.stage_of(rank);
    const int tp_rank = grid.tp_rank_of(rank);
    Group& tp = *tp_groups[static_cast<size_t>(stage)];
    Group& pp = *pp_groups[static_cast<size_t>(tp_rank)];
    ranks.push_back({std::make_unique<InProcessCommunicator>(world, tp, tp_rank),
                     std::make_unique<InProcessCommunicator>(world, pp, stage)});
  }
  return ranks;
}

}  // namespace lockstep
