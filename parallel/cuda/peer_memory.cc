#include "parallel/cuda/peer_memory.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

// CUDA gives out small pieces of blocks of this size, and a handle opens the whole block.
constexpr int64_t kGranule = int64_t{2} << 20;

constexpr size_t kTextBytes = 200;
using Text = std::array<char, kTextBytes>;  // ends with a 0

Text TextOf(absl::string_view from) {
  Text text = {};
  std::copy_n(from.begin(), std::min(from.size(), kTextBytes - 1), text.begin());
  return text;
}

// Process ids are not enough: containers on one machine have the same ones.
struct ProcessIdentity {
  int64_t process = ::getpid();
  uint64_t random = 0;
  bool operator==(const ProcessIdentity&) const = default;
};
ProcessIdentity IdentifyProcess() {
  static const ProcessIdentity identity = [] {
    ProcessIdentity made;
    if (::getrandom(&made.random, sizeof(made.random), 0) < 0) made.random = 0;
    return made;
  }();
  return identity;
}

// What a failed call leaves behind for the next one to find is taken away.
absl::Status Refusal(cudaError_t error, const char* what) {
  if (error != cudaSuccess) cudaGetLastError();
  return CudaStatus(error, what);
}

// Peer access of the current device to another of this process.
absl::Status ReachDevice(int device) {
  int current = 0;
  int can = 0;
  RETURN_IF_ERROR(Refusal(cudaGetDevice(&current), "asking for the GPU"));
  if (device == current) return absl::OkStatus();
  RETURN_IF_ERROR(
      Refusal(cudaDeviceCanAccessPeer(&can, current, device), "asking for peer access"));
  if (can == 0) {
    return absl::UnavailableError(
        absl::StrFormat("GPU %d has no peer access to GPU %d", current, device));
  }
  return absl::OkStatus();
}

absl::Status EnablePeerAccess(int device) {
  int current = 0;
  RETURN_IF_ERROR(Refusal(cudaGetDevice(&current), "asking for the GPU"));
  if (device == current) return absl::OkStatus();
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(device, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return absl::OkStatus();
  }
  return Refusal(enabled, "enabling peer access");
}

absl::StatusOr<std::shared_ptr<void>> OpenHandle(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  RETURN_IF_ERROR(
      Refusal(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess), "CUDA IPC"));
  return std::shared_ptr<void>(memory, [](void* opened) { cudaIpcCloseMemHandle(opened); });
}

}  // namespace

struct PeerMemory::Block {
  Block() = default;
  ~Block() {
    if (data != nullptr && !may_be_open) cudaFree(data);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void* data = nullptr;
  bool may_be_open = false;  // in other processes
};

// What each rank tells the others of itself.
struct PeerMemory::Facts {
  Text machine;
  ProcessIdentity process;
  const std::shared_ptr<void>* memory;  // in that process
  Text pci_bus_id;
  int device;  // in that process
  cudaIpcMemHandle_t handle;
};

absl::Status Agree(Communicator& host, const absl::Status& mine) {
  const Text text = TextOf(mine.message());
  struct Verdict {
    bool ok;
    Text text;
  };
  const Verdict verdict = {mine.ok(), text};
  std::vector<Verdict> all(static_cast<size_t>(host.size()));
  RETURN_IF_ERROR(host.AllGather(&verdict, sizeof(verdict), all.data()));
  const auto failed =
      std::find_if(all.begin(), all.end(), [](const Verdict& one) { return !one.ok; });
  if (failed == all.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("rank %d: %s", failed - all.begin(), failed->text.data()));
}

absl::Status PeerMemory::Allocate(int64_t bytes, cudaStream_t stream) {
  const auto whole = static_cast<size_t>((bytes + kGranule - 1) / kGranule * kGranule);
  own_ = std::make_shared<Block>();
  RETURN_IF_ERROR(Refusal(cudaMalloc(&own_->data, whole), "memory that peers read"));
  memory_[static_cast<size_t>(rank_)] = std::shared_ptr<void>(own_, own_->data);
  RETURN_IF_ERROR(Refusal(cudaMemsetAsync(own_->data, 0, whole, stream), "memory that peers read"));
  return Refusal(cudaStreamSynchronize(stream), "memory that peers read");
}

absl::Status PeerMemory::DescribeMine(const std::string& machine, Facts& facts) const {
  facts.machine = TextOf(machine);
  facts.process = IdentifyProcess();
  facts.memory = &memory_[static_cast<size_t>(rank_)];
  RETURN_IF_ERROR(Refusal(cudaGetDevice(&facts.device), "asking for the GPU"));
  RETURN_IF_ERROR(Refusal(
      cudaDeviceGetPCIBusId(facts.pci_bus_id.data(), static_cast<int>(kTextBytes), facts.device),
      "asking for the GPU's place"));
  return Refusal(cudaIpcGetMemHandle(&facts.handle, facts.memory->get()), "CUDA IPC");
}

absl::Status PeerMemory::Reach(int peer, const Facts& mine, const Facts& theirs) {
  std::shared_ptr<void>& memory = memory_[static_cast<size_t>(peer)];
  if (mine.machine != theirs.machine) {
    return absl::UnavailableError(absl::StrFormat("rank %d is on another host", peer));
  }
  if (mine.process == theirs.process) {
    RETURN_IF_ERROR(ReachDevice(theirs.device));
    RETURN_IF_ERROR(EnablePeerAccess(theirs.device));
    memory = *theirs.memory;
    return absl::OkStatus();
  }
  int device = 0;
  // A GPU that this process does not see may be reached nonetheless.
  if (cudaDeviceGetByPCIBusId(&device, theirs.pci_bus_id.data()) == cudaSuccess) {
    RETURN_IF_ERROR(ReachDevice(device));
  } else {
    cudaGetLastError();
  }
  ASSIGN_OR_RETURN(memory, OpenHandle(theirs.handle));
  return absl::OkStatus();
}

absl::Status PeerMemory::ReachAll(Communicator& host, const Facts& mine) {
  static_assert(std::is_trivially_copyable_v<Facts>);
  std::vector<Facts> all(static_cast<size_t>(host.size()));
  own_->may_be_open = true;  // from now on, whether or not they hear of it here
  RETURN_IF_ERROR(host.AllGather(&mine, sizeof(mine), all.data()));
  const auto is_here = [&](const Facts& facts) { return facts.process == mine.process; };
  own_->may_be_open = !std::all_of(all.begin(), all.end(), is_here);
  absl::Status status;
  for (int peer = 0; peer < host.size() && status.ok(); ++peer) {
    if (peer != host.rank()) status = Reach(peer, mine, all[static_cast<size_t>(peer)]);
  }
  return Agree(host, status);
}

absl::StatusOr<std::unique_ptr<PeerMemory>> PeerMemory::Exchange(Communicator& host, int64_t bytes,
                                                                 cudaStream_t stream,
                                                                 const std::string& machine) {
  std::unique_ptr<PeerMemory> made(new PeerMemory(host.rank(), host.size()));
  Facts mine = {};
  absl::Status status = made->Allocate(bytes, stream);
  if (status.ok()) status = made->DescribeMine(machine, mine);
  RETURN_IF_ERROR(Agree(host, status));
  status = made->ReachAll(host, mine);
  if (status.ok()) return made;
  if (absl::IsFailedPrecondition(status)) {  // on all ranks, some of which reach some
    RETURN_IF_ERROR(made->Leave(host, absl::OkStatus()));
  }
  return status;
}

void PeerMemory::Disconnect() {
  for (size_t rank = 0; rank < memory_.size(); ++rank) {
    if (static_cast<int>(rank) != rank_) memory_[rank].reset();
  }
}

void PeerMemory::Free() {
  own_->may_be_open = false;
  memory_[static_cast<size_t>(rank_)].reset();
  own_.reset();
}

absl::Status PeerMemory::Leave(Communicator& host, const absl::Status& idle) {
  if (idle.ok()) Disconnect();
  RETURN_IF_ERROR(Agree(host, idle));
  Free();
  return absl::OkStatus();
}

}  // namespace lockstep::cuda
