#include "tests/support/cuda_emulation/runtime/nccl_mesh.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/ring_sum.h"

namespace lockstep::cuda_emulation {

NcclMesh::NcclMesh(std::string name, int num_ranks, int rank)
    : name_(std::move(name)), num_ranks_(num_ranks), rank_(rank), links_(num_ranks) {
  listener_ = MakeSocket(rank, /*listen=*/true);
}

NcclMesh::~NcclMesh() { Close(); }

void NcclMesh::Close() {
  for (Link& link : links_) {
    if (link.socket >= 0) close(link.socket);
    link.socket = -1;
  }
  for (const int socket : strangers_) close(socket);
  strangers_.clear();
  if (listener_ >= 0) close(listener_);
  listener_ = -1;
}

// An address in the abstract namespace, which leaves no file behind. -1: nobody listens there yet.
int NcclMesh::MakeSocket(int rank, bool listens) const {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrCat(name_, "-", rank);
  LS_CHECK(name.size() + 1 < sizeof(address.sun_path)) << name;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  LS_CHECK(made >= 0) << std::strerror(errno);
  const auto* at = reinterpret_cast<const sockaddr*>(&address);
  if (listens) {
    LS_CHECK(bind(made, at, length) == 0 && listen(made, num_ranks_) == 0)
        << name << ": " << std::strerror(errno);
  } else if (connect(made, at, length) != 0) {
    close(made);
    return -1;
  }
  return made;
}

bool NcclMesh::Connect() {
  for (int peer = 0; peer < rank_; ++peer) {
    if (links_[peer].socket >= 0) continue;
    const int made = MakeSocket(peer, /*listen=*/false);
    if (made < 0) continue;
    LS_CHECK(send(made, &rank_, sizeof(rank_), MSG_NOSIGNAL) == sizeof(rank_));
    links_[peer].socket = made;
  }
  AcceptHigher();
  return std::count_if(links_.begin(), links_.end(),
                       [](const Link& link) { return link.socket >= 0; }) == num_ranks_ - 1;
}

void NcclMesh::AcceptHigher() {
  for (int socket;
       (socket = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    strangers_.push_back(socket);
  }
  std::erase_if(strangers_, [&](int socket) {
    int peer = 0;
    if (recv(socket, &peer, sizeof(peer), 0) != sizeof(peer)) return false;
    LS_CHECK(peer > rank_ && peer < num_ranks_) << peer;
    links_[peer].socket = socket;
    return true;
  });
}

void NcclMesh::Post(int peer, Frame frame, const Operation& operation, const void* data,
                    size_t bytes) {
  const Header header{frame, operation.kind,  static_cast<uint32_t>(operation.type),
                      0,     operation.count, bytes};
  std::vector<char>& outbox = links_[peer].outbox;
  const auto* head = reinterpret_cast<const char*>(&header);
  const auto* body = static_cast<const char*>(data);
  outbox.insert(outbox.end(), head, head + sizeof(header));
  outbox.insert(outbox.end(), body, body + bytes);
}

void NcclMesh::Begin(Part& part) {
  const Operation& mine = part.operation;
  part.begun = true;
  if (mine.kind == Operation::Kind::kRecv) return;
  if (mine.kind == Operation::Kind::kSend) {
    Post(mine.peer, Frame::kMessage, mine, mine.from, mine.bytes());
    part.number = ++links_[mine.peer].num_messages_sent;
    const auto* first = static_cast<const char*>(mine.from);
    part.sent.assign(first, first + mine.bytes());
    return;
  }
  const bool scatters = mine.kind == Operation::Kind::kReduceScatter;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const char* share = static_cast<const char*>(mine.from) + (scatters ? peer * mine.bytes() : 0);
    Post(peer, Frame::kCollective, mine, share, mine.bytes());
  }
}

void NcclMesh::SayGoodbye() {
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer != rank_) Post(peer, Frame::kGoodbye, {}, nullptr, 0);
  }
  Pump();
}

void NcclMesh::Pump() {
  for (Link& link : links_) {
    if (link.socket >= 0) PumpLink(link);
  }
}

void NcclMesh::PumpLink(Link& link) {
  while (link.sent < link.outbox.size()) {
    const ssize_t sent = send(link.socket, link.outbox.data() + link.sent,
                              link.outbox.size() - link.sent, MSG_NOSIGNAL);
    if (sent < 0) break;
    link.sent += static_cast<size_t>(sent);
  }
  if (link.sent == link.outbox.size()) {
    link.outbox.clear();
    link.sent = 0;
  }
  bool is_open = true;
  char buffer[1 << 16];
  for (ssize_t got; (got = recv(link.socket, buffer, sizeof(buffer), 0)) >= 0;) {
    if (got == 0) {
      is_open = false;
      break;
    }
    link.inbox.insert(link.inbox.end(), buffer, buffer + got);
  }
  Parse(link);
  if (!is_open && !link.said_goodbye) broken_ = true;
}

void NcclMesh::Parse(Link& link) {
  size_t at = 0;
  Header header;
  while (link.inbox.size() - at >= sizeof(header)) {
    std::memcpy(&header, link.inbox.data() + at, sizeof(header));
    if (link.inbox.size() - at - sizeof(header) < header.bytes) break;
    const auto body = link.inbox.begin() + static_cast<ptrdiff_t>(at + sizeof(header));
    Received received{header, {body, body + static_cast<ptrdiff_t>(header.bytes)}};
    at += sizeof(header) + header.bytes;
    if (header.frame == Frame::kAcknowledgement) {
      ++link.num_acknowledged;
    } else if (header.frame == Frame::kGoodbye) {
      link.said_goodbye = true;
    } else {
      (header.frame == Frame::kMessage ? link.messages : link.collectives)
          .push_back(std::move(received));
    }
  }
  link.inbox.erase(link.inbox.begin(), link.inbox.begin() + static_cast<ptrdiff_t>(at));
}

// Nobody waits for bytes that this rank holds back.
bool NcclMesh::Flushed() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& link) { return link.outbox.empty(); });
}

std::string NcclMesh::Advance(Part& part) {
  if (!part.begun) Begin(part);
  Pump();
  const Operation& mine = part.operation;
  std::string bad;
  if (!part.complete && mine.collective()) bad = FinishCollective(part);
  if (!part.complete && mine.kind == Operation::Kind::kRecv) bad = FinishReceive(part);
  if (mine.kind == Operation::Kind::kSend) {
    part.complete = links_[mine.peer].num_acknowledged >= part.number;
    if (part.complete && std::memcmp(mine.from, part.sent.data(), part.sent.size()) != 0) {
      bad = absl::StrFormat("NCCL: rank %d: the buffer of a %s was overwritten before it had left",
                            rank_, mine.Describe());
    }
  }
  Pump();
  part.done = part.complete && Flushed();
  return bad;
}

bool NcclMesh::Loses(const Operation& operation) const {
  const std::string& lost = TheEngine().device.nccl_loses;
  return !lost.empty() && rank_ == num_ranks_ - 1 && absl::StartsWith(operation.Describe(), lost);
}

std::string NcclMesh::FinishCollective(Part& part) {
  const Operation& mine = part.operation;
  const bool scatters = mine.kind == Operation::Kind::kReduceScatter;
  std::vector<const void*> terms(
      num_ranks_, static_cast<const char*>(mine.from) + (scatters ? rank_ * mine.bytes() : 0));
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    if (links_[peer].collectives.empty()) return "";
    const Received& theirs = links_[peer].collectives.front();
    const Operation other{theirs.header.kind, nullptr, nullptr, theirs.header.count,
                          static_cast<ncclDataType_t>(theirs.header.type)};
    if (other.kind != mine.kind || other.count != mine.count || other.type != mine.type) {
      return absl::StrFormat("NCCL: ranks disagree: %d comes with %s, %d with %s", rank_,
                             mine.Describe(), peer, other.Describe());
    }
    terms[peer] = theirs.data.data();
  }
  const std::vector<char> zeros(Loses(mine) ? mine.bytes() : 0);
  for (int peer = 0; peer < num_ranks_ && !zeros.empty(); ++peer) {
    if (peer != rank_) terms[peer] = zeros.data();
  }
  if (mine.kind == Operation::Kind::kAllGather) {
    Concatenate(terms, mine.bytes(), mine.to);
  } else {
    RingSum(terms, mine.count, mine.type, mine.to);
  }
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer != rank_) links_[peer].collectives.pop_front();
  }
  part.complete = true;
  return "";
}

std::string NcclMesh::FinishReceive(Part& part) {
  const Operation& mine = part.operation;
  Link& link = links_[mine.peer];
  if (link.messages.empty()) return "";
  const Received theirs = std::move(link.messages.front());
  link.messages.pop_front();
  if (theirs.data.size() != mine.bytes()) {
    return absl::StrFormat("NCCL: rank %d comes with a %s and finds a message of %d bytes", rank_,
                           mine.Describe(), theirs.data.size());
  }
  std::memcpy(mine.to, theirs.data.data(), theirs.data.size());
  if (Loses(mine)) std::memset(mine.to, 0, mine.bytes());
  Post(mine.peer, Frame::kAcknowledgement, mine, nullptr, 0);
  part.complete = true;
  return "";
}

}  // namespace lockstep::cuda_emulation
