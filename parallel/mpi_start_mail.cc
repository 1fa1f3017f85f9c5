#include "parallel/mpi_start_mail.h"

#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_clock.h"
#include "parallel/mpi_handle.h"
#include "parallel/polite_wait.h"

namespace lockstep {
namespace {

constexpr int kStartTag = 1;
constexpr PoliteWait::Policy kWaitAsleep = {.longest_pause = std::chrono::milliseconds(10)};

}  // namespace

StartMail::StartMail(int rank, int num_ranks, absl::Duration patience)
    : rank_(rank),
      num_ranks_(num_ranks),
      patience_(patience),
      deadline_(SteadyNow() + (rank == kRootRank ? patience : patience + kRootFirst)) {}

StartMail::~StartMail() {
  if (!sent_.empty()) new std::deque<Outgoing>(std::move(sent_));  // MPI may still read them
}

absl::Status StartMail::Send(int to, std::string bytes) {
  Outgoing& out = sent_.emplace_back();
  out.to = to;
  out.bytes = std::move(bytes);
  return FromMpi(MPI_Isend(out.bytes.data(), static_cast<int>(out.bytes.size()), MPI_BYTE, to,
                           kStartTag, MPI_COMM_WORLD, &out.request),
                 "MPI_Isend");
}

absl::Status StartMail::SendAll(const std::string& bytes) {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (rank != rank_) RETURN_IF_ERROR(Send(rank, bytes));
  }
  return absl::OkStatus();
}

absl::Status StartMail::Finish() {
  PoliteWait wait(kWaitAsleep);
  while (!sent_.empty()) {
    int done = 0;
    RETURN_IF_ERROR(
        FromMpi(MPI_Test(&sent_.front().request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    if (done != 0) {
      sent_.pop_front();
      continue;
    }
    if (SteadyNow() >= deadline_) return Late({sent_.front().to});
    wait.Pause();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StartMail::ReceiveOf(int rank) {
  ASSIGN_OR_RETURN(Texts received, Receive({rank}));
  return std::move(received.at(rank));
}

absl::StatusOr<StartMail::Texts> StartMail::Receive(std::set<int> ranks) {
  Texts received;
  PoliteWait wait(kWaitAsleep);
  while (true) {
    for (auto rank = ranks.begin(); rank != ranks.end();) {
      ASSIGN_OR_RETURN(std::optional<std::string> bytes, Poll(*rank));
      const bool has_come = bytes.has_value();
      if (has_come) received[*rank] = *std::move(bytes);
      rank = has_come ? ranks.erase(rank) : std::next(rank);
    }
    if (ranks.empty()) return received;
    if (SteadyNow() >= deadline_) return Late(ranks);
    wait.Pause();
  }
}

// Nothing: it has not come yet.
absl::StatusOr<std::optional<std::string>> StartMail::Poll(int rank) {
  int waits = 0;
  MPI_Status status;
  RETURN_IF_ERROR(
      FromMpi(MPI_Iprobe(rank, kStartTag, MPI_COMM_WORLD, &waits, &status), "MPI_Iprobe"));
  if (waits == 0) return std::nullopt;
  int size = 0;
  MPI_Get_count(&status, MPI_BYTE, &size);
  std::string bytes(static_cast<size_t>(size), '\0');
  RETURN_IF_ERROR(FromMpi(
      MPI_Recv(bytes.data(), size, MPI_BYTE, rank, kStartTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
      "MPI_Recv"));
  return bytes;
}

absl::Status StartMail::Late(const std::set<int>& ranks) const {
  return absl::DeadlineExceededError(absl::StrCat("rank ", absl::StrJoin(ranks, ", "), " of ",
                                                  num_ranks_, " did not come within ",
                                                  absl::FormatDuration(patience_)));
}

// Each with its length, as it lies.
std::string StartMail::Pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    const size_t size = text.size();
    packed.append(reinterpret_cast<const char*>(&size), sizeof(size));
    packed.append(text);
  }
  return packed;
}

std::vector<std::string> StartMail::Unpack(absl::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    size_t size = 0;
    LS_CHECK_GE(packed.size(), sizeof(size));
    std::memcpy(&size, packed.data(), sizeof(size));
    packed.remove_prefix(sizeof(size));
    LS_CHECK_GE(packed.size(), size);
    texts.emplace_back(packed.substr(0, size));
    packed.remove_prefix(size);
  }
  return texts;
}

}  // namespace lockstep
