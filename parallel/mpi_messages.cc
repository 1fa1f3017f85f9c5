#include "parallel/mpi_messages.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

// Sent without a preceding small message. Open MPI's shared-memory transport is eager up to 4096
// bytes with its header.
constexpr int64_t kEagerBytes = Communicator::kMostCopiedBytes;
constexpr int kTag = 1;
constexpr size_t kMostSent = 4096;  // before who sends waits for the oldest

}  // namespace

MpiMessages::MpiMessages(MpiHandle collectives, MpiHandle messages,
                         const MpiGroupSettings& settings)
    : collectives_(std::move(collectives)),
      messages_(std::move(messages)),
      most_bytes_(settings.options.max_message_bytes),
      interruption_(settings.is_over) {
  using std::chrono::microseconds;
  const microseconds spin(settings.may_spin ? 20 : 0);
  polite_ = {.spin = spin, .yield = microseconds(50), .longest_pause = microseconds(10000)};
  brisk_ = {.spin = spin, .yield = microseconds(2000), .longest_pause = microseconds(50)};
  MPI_Comm_rank(collectives_.get(), &rank_);
  MPI_Comm_size(collectives_.get(), &size_);
}

// After an abort, messages may be left that nobody will ever match. Were the communicator freed, a
// later one could get its number and match them; so it stays, some KiB per round of the job.
MpiMessages::~MpiMessages() {
  for (std::unique_ptr<Copy>& copy : sent_) {
    int done = 0;
    if (!interruption_.raised()) MPI_Test(&copy->request, &done, MPI_STATUS_IGNORE);
    if (done != 0) continue;
    if (copy->request != MPI_REQUEST_NULL) MPI_Request_free(&copy->request);
    static_cast<void>(copy.release());  // MPI may read it until the receiver has it, if ever
  }
  if (!interruption_.raised()) return;
  collectives_.Keep();
  messages_.Keep();
}

absl::Status MpiMessages::Health() const {
  if (!interruption_.raised()) return absl::OkStatus();
  return absl::UnavailableError("the group was aborted");
}

absl::Status MpiMessages::Wait(MPI_Request* requests, int count, int64_t expected_bytes,
                               const PoliteWait::Policy& policy) {
  MPI_Status statuses[2];
  PoliteWait wait(policy);
  for (int done = 0; done == 0;) {
    RETURN_IF_ERROR(FromMpi(MPI_Testall(count, requests, &done, statuses), "MPI_Testall"));
    if (done != 0) break;
    if (interruption_.Poll()) {
      TakeBack(requests, count, expected_bytes >= 0);
      return Health();
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
void MpiMessages::TakeBack(MPI_Request* requests, int count, bool receives) {
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

// One message each way, of at most most_bytes_.
absl::Status MpiMessages::Move(MPI_Comm comm, const Transfer& transfer,
                               const PoliteWait::Policy& policy) {
  RETURN_IF_ERROR(Health());
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
absl::Status MpiMessages::Meet(const Transfer& transfer) {
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

absl::Status MpiMessages::Exchange(const Transfer& whole) {
  if (std::max(whole.send_bytes, whole.recv_bytes) <= kEagerBytes) {
    return Move(collectives_.get(), whole, polite_);
  }
  RETURN_IF_ERROR(Meet(whole));
  const int64_t step = most_bytes_;
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

absl::Status MpiMessages::CheckPeer(int peer) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("rank %d of %d has no peer %d", rank_, size_, peer));
}

// Who sends it need not wait until the receiver makes a call, which may itself wait for something
// that the sender does next.
absl::Status MpiMessages::SendCopy(int peer, const void* data, int64_t bytes) {
  RETURN_IF_ERROR(Health());
  for (int done = 1; !sent_.empty() && done != 0;) {
    RETURN_IF_ERROR(
        FromMpi(MPI_Test(&sent_.front()->request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    if (done == 0 && sent_.size() < kMostSent) break;
    if (done == 0) RETURN_IF_ERROR(Wait(&sent_.front()->request, 1, -1, polite_));
    spare_.push_back(std::move(sent_.front()));
    sent_.pop_front();
  }
  if (spare_.empty()) spare_.push_back(std::make_unique<Copy>());
  sent_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  Copy& copy = *sent_.back();
  if (bytes > 0) std::memcpy(copy.bytes.data(), data, static_cast<size_t>(bytes));
  return FromMpi(MPI_Isend(copy.bytes.data(), static_cast<int>(bytes), MPI_BYTE, peer, kTag,
                           messages_.get(), &copy.request),
                 "MPI_Isend");
}

absl::Status MpiMessages::Send(int peer, const void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckPeer(peer));
  if (bytes <= kEagerBytes) return SendCopy(peer, data, bytes);
  const MPI_Comm comm = messages_.get();
  // A synchronous send ends when the receiver has taken the size: until then this rank sleeps.
  MPI_Request request;
  meeting_mine_ = bytes;
  RETURN_IF_ERROR(FromMpi(
      MPI_Issend(&meeting_mine_, sizeof(meeting_mine_), MPI_BYTE, peer, kTag, comm, &request),
      "MPI_Issend"));
  RETURN_IF_ERROR(Wait(&request, 1, -1, polite_));
  const std::byte* from = static_cast<const std::byte*>(data);
  for (int64_t at = 0; at < bytes; at += most_bytes_) {
    const int64_t piece = std::min(most_bytes_, bytes - at);
    RETURN_IF_ERROR(Move(comm, {.to = peer, .send = from + at, .send_bytes = piece}, brisk_));
  }
  return absl::OkStatus();
}

absl::Status MpiMessages::Recv(int peer, void* data, int64_t bytes) {
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
  for (int64_t at = 0; at < bytes; at += most_bytes_) {
    const int64_t piece = std::min(most_bytes_, bytes - at);
    RETURN_IF_ERROR(Move(comm, {.from = peer, .recv = to + at, .recv_bytes = piece}, brisk_));
  }
  return absl::OkStatus();
}

bool MpiMessages::Probe(int peer) {
  if (!CheckPeer(peer).ok()) return false;
  int waiting = 0;
  const int code = MPI_Iprobe(peer, kTag, messages_.get(), &waiting, MPI_STATUS_IGNORE);
  return code == MPI_SUCCESS && waiting != 0;
}

}  // namespace lockstep
