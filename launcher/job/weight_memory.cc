#include "launcher/job/weight_memory.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr timeval kPatience = {5, 0};

absl::Status Unavailable(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::StatusOr<sockaddr_un> AddressOf(const fs::path& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string& text = path.native();
  if (text.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        text, ": longer than the ", sizeof(address.sun_path) - 1, " bytes of a socket's path"));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  return address;
}

void LimitWaiting(const Fd& socket) {
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
}

// A message of one byte with room for a descriptor beside it.
struct DescriptorMessage {
  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};

  DescriptorMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
};

bool SendDescriptor(const Fd& socket, int descriptor) {
  DescriptorMessage message;
  cmsghdr* item = CMSG_FIRSTHDR(&message.header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  return ::sendmsg(socket.get(), &message.header, MSG_NOSIGNAL) == 1;
}

Fd ReceiveDescriptor(const Fd& socket) {
  DescriptorMessage message;
  if (::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC) != 1) return Fd();
  const cmsghdr* item = CMSG_FIRSTHDR(&message.header);
  if (item == nullptr || item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS ||
      item->cmsg_len != CMSG_LEN(sizeof(int))) {
    return Fd();
  }
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(item), sizeof(int));
  return Fd(descriptor);
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightMemory>> WeightMemory::Create(int num_ranks,
                                                                   const fs::path& directory) {
  std::vector<Fd> files;
  for (int rank = 0; rank < num_ranks; ++rank) {
    files.emplace_back(::memfd_create("lockstep weights", MFD_CLOEXEC));
    if (!files.back().valid() || ::fchmod(files.back().get(), 0600) != 0) {
      return Unavailable("cannot make a file in memory");
    }
  }
  const fs::path path = directory / "weights.socket";
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid() ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener.get(), num_ranks) != 0) {
    return Unavailable(absl::StrCat("cannot listen on ", path.string()));
  }
  return std::unique_ptr<WeightMemory>(
      new WeightMemory(std::move(files), path, std::move(listener)));
}

WeightMemory::WeightMemory(std::vector<Fd> files, fs::path socket, Fd listener)
    : files_(std::move(files)),
      socket_(std::move(socket)),
      listener_(std::move(listener)),
      thread_([this] { Serve(); }) {}

WeightMemory::~WeightMemory() {
  is_ending_ = true;
  ::shutdown(listener_.get(), SHUT_RDWR);  // wakes accept
  thread_.join();
  ::unlink(socket_.c_str());
}

void WeightMemory::Serve() const {
  while (!is_ending_) {
    const Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.valid()) {
      Answer(peer);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      absl::SleepFor(absl::Milliseconds(10));  // descriptors or memory are short: for a while
    }
  }
}

// What a rank sends is its number; what has none is not answered.
void WeightMemory::Answer(const Fd& peer) const {
  ucred user = {};
  socklen_t size = sizeof(user);
  if (::getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &user, &size) != 0) return;
  if (user.uid != ::geteuid()) return;
  LimitWaiting(peer);
  int32_t rank = -1;
  if (::recv(peer.get(), &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank)) return;
  if (rank < 0 || rank >= std::ssize(files_)) return;
  SendDescriptor(peer, files_[static_cast<size_t>(rank)].get());
}

absl::StatusOr<Fd> WeightMemory::Receive(const fs::path& socket, int rank) {
  ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(socket));
  const Fd owner(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!owner.valid()) return Unavailable("socket");
  LimitWaiting(owner);
  const int32_t number = rank;
  if (::connect(owner.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::send(owner.get(), &number, sizeof(number), MSG_NOSIGNAL) != sizeof(number)) {
    return Unavailable(absl::StrCat("cannot reach ", socket.string()));
  }
  Fd file = ReceiveDescriptor(owner);
  if (file.valid()) return file;
  return absl::UnavailableError(absl::StrCat(socket.string(), " has no memory for rank ", rank));
}

fs::path WeightMemory::PathOf(const Fd& file) { return absl::StrCat("/proc/self/fd/", file.get()); }

}  // namespace lockstep
