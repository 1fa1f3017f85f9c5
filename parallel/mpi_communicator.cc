#include "parallel/mpi_communicator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "parallel/all_reduce_trial.h"
#include "parallel/interruption.h"
#include "parallel/mpi_groups.h"
#include "parallel/mpi_handle.h"
#include "parallel/mpi_shared_region.h"
#include "parallel/polite_wait.h"
#include "parallel/shared_memory_collectives.h"
#include "parallel/tree_sum.h"

namespace lockstep {
namespace {

// Sent without a preceding small message. Open MPI's shared-memory transport is eager up to 4096
// bytes with its header.
constexpr int64_t kEagerBytes = 4000;
constexpr int kTag = 1;

class MpiCommunicator : public Communicator {
 public:
  // Two communicators, so that an early collective of a peer is never taken for a message.
  // Collective: ranks on one host map shared memory.
  MpiCommunicator(MpiHandle collectives, MpiHandle messages, const MpiGroupSettings& settings);
  ~MpiCommunicator() override;

  // Keeps the faster way of doing collectives, where there are two. Collective.
  absl::Status ChooseByMeasurement();

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status AllReduceSum(float* data, int64_t count) override;
  absl::Status ReduceScatterSum(float* data, int64_t share) override;
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override;
  absl::Status Recv(int peer, void* data, int64_t bytes) override;
  bool Probe(int peer) override;
  absl::Status Barrier() override;
  void Abort() override { interruption_.Raise(); }

 private:
  struct Transfer {
    int to = MPI_PROC_NULL;
    const void* send = nullptr;
    int64_t send_bytes = 0;
    int from = MPI_PROC_NULL;
    void* recv = nullptr;
    int64_t recv_bytes = 0;
  };
  absl::Status ReduceByMessages(float* data, int64_t count);
  absl::Status ReduceByDoubling(float* data, int64_t count);
  absl::Status ReduceByHalving(float* data, int64_t count);
  absl::Status ReduceGathered(float* data, int64_t count);
  absl::Status ScatterByMessages(float* data, int64_t share);

  // Sends and receives at once. Either side may be MPI_PROC_NULL.
  absl::Status Exchange(const Transfer& transfer);
  absl::Status Meet(const Transfer& transfer);
  absl::Status Move(MPI_Comm comm, const Transfer& transfer, const PoliteWait::Policy& policy);
  absl::Status Wait(MPI_Request* requests, int count, int64_t expected_bytes,
                    const PoliteWait::Policy& policy);
  void TakeBack(MPI_Request* requests, int count, bool receives);
  absl::Status CheckPeer(int peer) const;
  bool aborted() const { return interruption_.raised(); }
  static absl::Status Aborted() { return absl::UnavailableError("the group was aborted"); }
  float* Scratch(int64_t count);

  MpiHandle collectives_;
  MpiHandle messages_;
  const MpiOptions options_;
  PoliteWait::Policy polite_;  // the peer may be late
  PoliteWait::Policy brisk_;   // the peer is there
  int rank_ = 0;
  int size_ = 1;
  Interruption interruption_;
  int64_t meeting_mine_ =
      0;  // of Meet and of long messages; members, as an aborted one stays behind
  int64_t meeting_theirs_ = 0;
  std::vector<float> scratch_;  // grows to the largest need, then stays
  std::optional<MpiSharedRegion> region_;
  std::optional<SharedMemoryCollectives>
      shared_;  // in region_; does the collectives when there is one
};

MpiCommunicator::MpiCommunicator(MpiHandle collectives, MpiHandle messages,
                                 const MpiGroupSettings& settings)
    : collectives_(std::move(collectives)),
      messages_(std::move(messages)),
      options_(settings.options),
      interruption_(settings.is_over) {
  using std::chrono::microseconds;
  const microseconds spin(settings.may_spin ? 20 : 0);
  polite_ = {.spin = spin, .yield = microseconds(50), .longest_pause = microseconds(10000)};
  brisk_ = {.spin = spin, .yield = microseconds(2000), .longest_pause = microseconds(50)};
  MPI_Comm_rank(collectives_.get(), &rank_);
  MPI_Comm_size(collectives_.get(), &size_);
  if (options_.host_collectives == HostCollectives::kMessages) return;
  region_ = MpiSharedRegion::Map(collectives_.get(), SharedMemoryCollectives::BytesNeeded(size_));
  if (region_.has_value()) {
    shared_.emplace(region_->data(), rank_, size_, settings.may_spin, interruption_);
  }
}

// After an abort, messages may be left that nobody will ever match. Were the communicator freed, a
// later one could get its number and match them; so it stays, some KiB per round of the job.
MpiCommunicator::~MpiCommunicator() {
  if (!aborted()) return;
  collectives_.Keep();
  messages_.Keep();
}

float* MpiCommunicator::Scratch(int64_t count) {
  if (std::ssize(scratch_) < count) scratch_.resize(static_cast<size_t>(count));
  return scratch_.data();
}

absl::Status MpiCommunicator::Wait(MPI_Request* requests, int count, int64_t expected_bytes,
                                   const PoliteWait::Policy& policy) {
  MPI_Status statuses[2];
  PoliteWait wait(policy);
  for (int done = 0; done == 0;) {
    RETURN_IF_ERROR(FromMpi(MPI_Testall(count, requests, &done, statuses), "MPI_Testall"));
    if (done != 0) break;
    if (interruption_.Poll()) {
      TakeBack(requests, count, expected_bytes >= 0);
      return Aborted();
    }
    wait.Pause();
  }
  if (expected_bytes < 0) return absl::OkStatus();  // nothing was received
  int received = 0;
  MPI_Get_count(&statuses[0], MPI_BYTE, &received);
  if (received == expected_bytes) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("received %d bytes where %d were expected", received, expected_bytes));
}

// Nothing may land any more in the buffer of the receive, which comes first if there is one: it is
// cancelled, or, if its message is already arriving, completed; the sender keeps MPI moving until
// it finds its group aborted too. A send cannot be cancelled (MPI-4.0, 3.8.4): it is left behind,
// and peers may read its buffer until all ranks have met again.
void MpiCommunicator::TakeBack(MPI_Request* requests, int count, bool receives) {
  if (receives && requests[0] != MPI_REQUEST_NULL) {
    MPI_Cancel(&requests[0]);
    PoliteWait wait(polite_);
    for (int done = 0; MPI_Test(&requests[0], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS;) {
      if (done != 0) break;
      wait.Pause();
    }
  }
  for (int i = receives ? 1 : 0; i < count; ++i) {
    if (requests[i] != MPI_REQUEST_NULL) MPI_Request_free(&requests[i]);
  }
}

// One message each way, of at most max_message_bytes.
absl::Status MpiCommunicator::Move(MPI_Comm comm, const Transfer& transfer,
                                   const PoliteWait::Policy& policy) {
  if (aborted()) return Aborted();
  MPI_Request requests[2];
  int count = 0;
  const bool receives = transfer.from != MPI_PROC_NULL;
  if (receives) {
    RETURN_IF_ERROR(FromMpi(MPI_Irecv(transfer.recv, static_cast<int>(transfer.recv_bytes),
                                      MPI_BYTE, transfer.from, kTag, comm, &requests[count++]),
                            "MPI_Irecv"));
  }
  if (transfer.to != MPI_PROC_NULL) {
    RETURN_IF_ERROR(FromMpi(MPI_Isend(transfer.send, static_cast<int>(transfer.send_bytes),
                                      MPI_BYTE, transfer.to, kTag, comm, &requests[count++]),
                            "MPI_Isend"));
  }
  return Wait(requests, count, receives ? transfer.recv_bytes : -1, policy);
}

// Both know that the other has arrived when this returns.
absl::Status MpiCommunicator::Meet(const Transfer& transfer) {
  meeting_mine_ = transfer.send_bytes;
  meeting_theirs_ = 0;
  RETURN_IF_ERROR(Move(collectives_.get(),
                       {.to = transfer.to,
                        .send = &meeting_mine_,
                        .send_bytes = sizeof(meeting_mine_),
                        .from = transfer.from,
                        .recv = &meeting_theirs_,
                        .recv_bytes = sizeof(meeting_theirs_)},
                       polite_));
  if (meeting_theirs_ == transfer.recv_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("rank %d of %d sends %d bytes where %d are expected",
                                             transfer.from, size_, meeting_theirs_,
                                             transfer.recv_bytes));
}

absl::Status MpiCommunicator::Exchange(const Transfer& whole) {
  if (std::max(whole.send_bytes, whole.recv_bytes) <= kEagerBytes) {
    return Move(collectives_.get(), whole, polite_);
  }
  RETURN_IF_ERROR(Meet(whole));
  const int64_t step = options_.max_message_bytes;
  for (int64_t at = 0; at < std::max(whole.send_bytes, whole.recv_bytes); at += step) {
    Transfer piece;
    if (at < whole.send_bytes) {
      piece.to = whole.to;
      piece.send = static_cast<const std::byte*>(whole.send) + at;
      piece.send_bytes = std::min(step, whole.send_bytes - at);
    }
    if (at < whole.recv_bytes) {
      piece.from = whole.from;
      piece.recv = static_cast<std::byte*>(whole.recv) + at;
      piece.recv_bytes = std::min(step, whole.recv_bytes - at);
    }
    RETURN_IF_ERROR(Move(collectives_.get(), piece, brisk_));
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::ChooseByMeasurement() {
  if (!shared_.has_value() || options_.host_collectives != HostCollectives::kMeasured) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const float shared, TryAllReduce([this](float* data, int64_t count) {
                     return shared_->AllReduceSum(data, count);
                   }));
  ASSIGN_OR_RETURN(const float messages, TryAllReduce([this](float* data, int64_t count) {
                     return ReduceByMessages(data, count);
                   }));
  // Everybody gets the same sums, hence decides alike.
  float seconds[] = {shared, messages};
  RETURN_IF_ERROR(shared_->AllReduceSum(seconds, 2));
  if (seconds[0] <= seconds[1]) return absl::OkStatus();
  shared_.reset();
  region_.reset();
  return absl::OkStatus();
}

absl::Status MpiCommunicator::AllReduceSum(float* data, int64_t count) {
  if (aborted()) return Aborted();
  if (count == 0) return absl::OkStatus();
  return shared_.has_value() ? shared_->AllReduceSum(data, count) : ReduceByMessages(data, count);
}

absl::Status MpiCommunicator::ReduceByMessages(float* data, int64_t count) {
  if (!std::has_single_bit(static_cast<unsigned>(size_))) return ReduceGathered(data, count);
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  return bytes <= options_.small_all_reduce_bytes ? ReduceByDoubling(data, count)
                                                  : ReduceByHalving(data, count);
}

// Recursive doubling (Thakur, Rabenseifner, Gropp 2005, section 4.3): at distance d a rank holds
// the sum over its aligned group of d ranks and adds its neighbour group's.
absl::Status MpiCommunicator::ReduceByDoubling(float* data, int64_t count) {
  float* theirs = Scratch(count);
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  for (int distance = 1; distance < size_; distance *= 2) {
    const int peer = rank_ ^ distance;
    RETURN_IF_ERROR(Exchange({peer, data, bytes, peer, theirs, bytes}));
    if (rank_ < peer) {
      AddLowHigh(data, theirs, count, data);
    } else {
      AddLowHigh(theirs, data, count, data);
    }
  }
  return absl::OkStatus();
}

// Reduce-scatter by recursive halving, then all-gather by recursive doubling (same source,
// section 4.2), but starting with the neighbour, so that every element's sum is the tree of
// neighbours.
absl::Status MpiCommunicator::ReduceByHalving(float* data, int64_t count) {
  constexpr int kMaxLevels = 31;
  int64_t begins[kMaxLevels], ends[kMaxLevels];  // what was mine before each level
  float* theirs = Scratch((count + 1) / 2);
  int64_t begin = 0, end = count;
  const auto bytes_of = [](int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); };
  int level = 0;
  for (int distance = 1; distance < size_; distance *= 2, ++level) {
    begins[level] = begin;
    ends[level] = end;
    const int peer = rank_ ^ distance;
    const int64_t middle = begin + (end - begin) / 2;
    const bool keeps_low = rank_ < peer;
    const int64_t given = keeps_low ? middle : begin;
    const int64_t num_given = keeps_low ? end - middle : middle - begin;
    begin = keeps_low ? begin : middle;
    end = keeps_low ? middle : end;
    RETURN_IF_ERROR(
        Exchange({peer, data + given, bytes_of(num_given), peer, theirs, bytes_of(end - begin)}));
    float* kept = data + begin;
    AddLowHigh(keeps_low ? kept : theirs, keeps_low ? theirs : kept, end - begin, kept);
  }
  while (level-- > 0) {
    const int peer = rank_ ^ (1 << level);
    const int64_t missing = begin == begins[level] ? end : begins[level];
    const int64_t num_missing = (ends[level] - begins[level]) - (end - begin);
    RETURN_IF_ERROR(Exchange(
        {peer, data + begin, bytes_of(end - begin), peer, data + missing, bytes_of(num_missing)}));
    begin = begins[level];
    end = ends[level];
  }
  return absl::OkStatus();
}

// For sizes that are not powers of two: everybody gathers a strip of everything and adds it up.
absl::Status MpiCommunicator::ReduceGathered(float* data, int64_t count) {
  constexpr int64_t kStrip = 64 * 1024;  // floats; bounds the scratch memory
  float* all = Scratch(std::min(count, kStrip) * size_);
  std::vector<float*> parts(static_cast<size_t>(size_));
  for (int64_t at = 0; at < count; at += kStrip) {
    const int64_t strip = std::min(kStrip, count - at);
    const int64_t bytes = strip * static_cast<int64_t>(sizeof(float));
    RETURN_IF_ERROR(AllGather(data + at, bytes, all));
    for (int rank = 0; rank < size_; ++rank) parts[static_cast<size_t>(rank)] = all + rank * strip;
    TreeSumInPlace(parts, 0, strip);
    std::memcpy(data + at, all, static_cast<size_t>(bytes));
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::ReduceScatterSum(float* data, int64_t share) {
  if (aborted()) return Aborted();
  if (share == 0) return absl::OkStatus();
  return shared_.has_value() ? shared_->ReduceScatterSum(data, share)
                             : ScatterByMessages(data, share);
}

// Everybody sends each rank its share and adds up what has come: the traffic of halving, for any
// number of ranks.
absl::Status MpiCommunicator::ScatterByMessages(float* data, int64_t share) {
  float* const theirs = Scratch((size_ - 1) * share);
  const int64_t bytes = share * static_cast<int64_t>(sizeof(float));
  float* const own = data + rank_ * share;
  std::vector<float*> parts(static_cast<size_t>(size_), own);
  for (int distance = 1; distance < size_; ++distance) {
    const int to = (rank_ + distance) % size_;
    const int from = (rank_ - distance + size_) % size_;
    float* const part = theirs + (distance - 1) * share;
    RETURN_IF_ERROR(Exchange({to, data + to * share, bytes, from, part, bytes}));
    parts[static_cast<size_t>(from)] = part;
  }
  TreeSum(parts, 0, share, own);
  return absl::OkStatus();
}

absl::Status MpiCommunicator::AllGather(const void* mine, int64_t bytes, void* all) {
  if (aborted()) return Aborted();
  if (shared_.has_value()) return shared_->AllGather(mine, bytes, all);
  std::byte* slots = static_cast<std::byte*>(all);
  std::byte* own = slots + rank_ * bytes;
  if (own != mine && bytes > 0) std::memcpy(own, mine, static_cast<size_t>(bytes));
  for (int distance = 1; distance < size_; ++distance) {
    const int to = (rank_ + distance) % size_;
    const int from = (rank_ - distance + size_) % size_;
    RETURN_IF_ERROR(Exchange({to, own, bytes, from, slots + from * bytes, bytes}));
  }
  return absl::OkStatus();
}

// Dissemination (Hensgen, Finkel, Manber 1988): after log2(size) rounds everybody has heard of
// everybody.
absl::Status MpiCommunicator::Barrier() {
  if (aborted()) return Aborted();
  if (shared_.has_value()) return shared_->Barrier();
  for (int distance = 1; distance < size_; distance *= 2) {
    const int to = (rank_ + distance) % size_;
    const int from = (rank_ - distance + size_) % size_;
    RETURN_IF_ERROR(Exchange({.to = to, .from = from}));
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::CheckPeer(int peer) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("rank %d of %d has no peer %d", rank_, size_, peer));
}

absl::Status MpiCommunicator::Send(int peer, const void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckPeer(peer));
  const MPI_Comm comm = messages_.get();
  if (bytes <= kEagerBytes) {
    return Move(comm, {.to = peer, .send = data, .send_bytes = bytes}, polite_);
  }
  // A synchronous send ends when the receiver has taken the size: until then this rank sleeps.
  MPI_Request request;
  meeting_mine_ = bytes;
  RETURN_IF_ERROR(FromMpi(
      MPI_Issend(&meeting_mine_, sizeof(meeting_mine_), MPI_BYTE, peer, kTag, comm, &request),
      "MPI_Issend"));
  RETURN_IF_ERROR(Wait(&request, 1, -1, polite_));
  const std::byte* from = static_cast<const std::byte*>(data);
  for (int64_t at = 0; at < bytes; at += options_.max_message_bytes) {
    const int64_t piece = std::min(options_.max_message_bytes, bytes - at);
    RETURN_IF_ERROR(Move(comm, {.to = peer, .send = from + at, .send_bytes = piece}, brisk_));
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::Recv(int peer, void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckPeer(peer));
  const MPI_Comm comm = messages_.get();
  if (bytes <= kEagerBytes) {
    return Move(comm, {.from = peer, .recv = data, .recv_bytes = bytes}, polite_);
  }
  meeting_theirs_ = 0;
  RETURN_IF_ERROR(
      Move(comm, {.from = peer, .recv = &meeting_theirs_, .recv_bytes = sizeof(meeting_theirs_)},
           polite_));
  if (meeting_theirs_ != bytes) {
    return absl::InternalError(
        absl::StrFormat("rank %d sends %d bytes to rank %d, which expects %d", peer,
                        meeting_theirs_, rank_, bytes));
  }
  std::byte* to = static_cast<std::byte*>(data);
  for (int64_t at = 0; at < bytes; at += options_.max_message_bytes) {
    const int64_t piece = std::min(options_.max_message_bytes, bytes - at);
    RETURN_IF_ERROR(Move(comm, {.from = peer, .recv = to + at, .recv_bytes = piece}, brisk_));
  }
  return absl::OkStatus();
}

bool MpiCommunicator::Probe(int peer) {
  if (!CheckPeer(peer).ok()) return false;
  int waiting = 0;
  const int code = MPI_Iprobe(peer, kTag, messages_.get(), &waiting, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS && waiting != 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeMpiCommunicator(
    MpiHandle collectives, MpiHandle messages, const MpiGroupSettings& settings) {
  auto group =
      std::make_unique<MpiCommunicator>(std::move(collectives), std::move(messages), settings);
  // Ranks that share cores sleep in shared memory until they are woken; MPI would poll.
  if (settings.may_spin) RETURN_IF_ERROR(group->ChooseByMeasurement());
  return group;
}

}  // namespace lockstep
