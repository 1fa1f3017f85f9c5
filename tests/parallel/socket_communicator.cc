#include "tests/parallel/socket_communicator.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "parallel/tree_sum.h"

namespace lockstep::testing {
namespace {

class SocketCommunicator final : public Communicator {
 public:
  SocketCommunicator(int rank, std::vector<int> sockets)
      : rank_(rank), sockets_(std::move(sockets)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(sockets_.size()); }
  absl::Status AllReduceSum(float* data, int64_t count) override;
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override;
  absl::Status Recv(int peer, void* data, int64_t bytes) override;
  bool Probe(int peer) override;
  absl::Status Barrier() override;
  void Abort() override;

 private:
  enum class Kind : int64_t { kMessage, kCollective };
  struct Header {
    Kind kind;
    int64_t bytes;
  };
  int socket_to(int peer) const { return sockets_[static_cast<size_t>(peer)]; }
  absl::Status Give(Kind kind, int peer, const void* data, int64_t bytes);
  absl::Status Take(Kind kind, int peer, void* data, int64_t bytes);
  absl::Status Write(int peer, const void* data, int64_t bytes);
  absl::Status Read(int peer, void* data, int64_t bytes);
  absl::Status Lost(int peer) const {
    return absl::UnavailableError(absl::StrFormat("rank %d has lost rank %d", rank_, peer));
  }

  const int rank_;
  const std::vector<int> sockets_;
};

absl::Status SocketCommunicator::Write(int peer, const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(socket_to(peer), next, static_cast<size_t>(bytes), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return Lost(peer);
    next += sent;
    bytes -= sent;
  }
  return absl::OkStatus();
}

absl::Status SocketCommunicator::Read(int peer, void* data, int64_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(socket_to(peer), next, static_cast<size_t>(bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Lost(peer);
    next += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::Status SocketCommunicator::Give(Kind kind, int peer, const void* data, int64_t bytes) {
  const Header header = {kind, bytes};
  RETURN_IF_ERROR(Write(peer, &header, sizeof(header)));
  return Write(peer, data, bytes);
}

absl::Status SocketCommunicator::Take(Kind kind, int peer, void* data, int64_t bytes) {
  Header sent = {};
  RETURN_IF_ERROR(Read(peer, &sent, sizeof(sent)));
  if (sent.kind != kind || sent.bytes != bytes) {
    return absl::InternalError(absl::StrFormat("rank %d expects %d bytes of rank %d, which sent %d",
                                               rank_, bytes, peer, sent.bytes));
  }
  return Read(peer, data, bytes);
}

absl::Status SocketCommunicator::Send(int peer, const void* data, int64_t bytes) {
  return Give(Kind::kMessage, peer, data, bytes);
}

absl::Status SocketCommunicator::Recv(int peer, void* data, int64_t bytes) {
  return Take(Kind::kMessage, peer, data, bytes);
}

// Pair by pair, in the same order everywhere, the lower rank first: nobody waits in a circle.
absl::Status SocketCommunicator::AllGather(const void* mine, int64_t bytes, void* all) {
  auto* parts = static_cast<std::byte*>(all);
  if (bytes > 0) std::memmove(parts + rank_ * bytes, mine, static_cast<size_t>(bytes));
  const std::byte* own = parts + rank_ * bytes;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    if (rank_ < peer) RETURN_IF_ERROR(Give(Kind::kCollective, peer, own, bytes));
    RETURN_IF_ERROR(Take(Kind::kCollective, peer, parts + peer * bytes, bytes));
    if (rank_ > peer) RETURN_IF_ERROR(Give(Kind::kCollective, peer, own, bytes));
  }
  return absl::OkStatus();
}

absl::Status SocketCommunicator::AllReduceSum(float* data, int64_t count) {
  std::vector<float> all(static_cast<size_t>(count * size()));
  RETURN_IF_ERROR(AllGather(data, count * static_cast<int64_t>(sizeof(float)), all.data()));
  std::vector<float*> parts;
  for (int rank = 0; rank < size(); ++rank) parts.push_back(all.data() + rank * count);
  TreeSum(parts, 0, count, data);
  return absl::OkStatus();
}

bool SocketCommunicator::Probe(int peer) {
  Header next = {};
  const ssize_t seen = recv(socket_to(peer), &next, sizeof(next), MSG_PEEK | MSG_DONTWAIT);
  return seen == sizeof(next) && next.kind == Kind::kMessage;
}

absl::Status SocketCommunicator::Barrier() {
  const char here = 1;
  std::vector<char> all(sockets_.size());
  return AllGather(&here, 1, all.data());
}

void SocketCommunicator::Abort() {
  for (const int socket : sockets_) {
    if (socket >= 0) shutdown(socket, SHUT_RDWR);
  }
}

}  // namespace

std::unique_ptr<Communicator> MakeSocketCommunicator(int rank, std::vector<int> sockets) {
  return std::make_unique<SocketCommunicator>(rank, std::move(sockets));
}

}  // namespace lockstep::testing
