#include "parallel/cuda/nccl_communicator.h"

#include <nccl.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/device_array.h"
#include "parallel/cuda/first_exchange.h"
#include "parallel/cuda/launch_times.h"
#include "parallel/cuda/nccl_barrier.h"
#include "parallel/cuda/nccl_exchange.h"
#include "parallel/cuda/nccl_group.h"
#include "parallel/cuda/nccl_tree_sums.h"
#include "parallel/cuda/peer_collectives.h"

namespace lockstep::cuda {
namespace {

constexpr std::chrono::milliseconds kFarewell{10000};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::unique_ptr<NcclGroup> group, const KernelStream& stream,
                   const NcclOptions& options)
      : stream_(stream), options_(options), group_(std::move(group)) {}
  ~NcclCommunicator() override;
  // Memory, and a first exchange by every algorithm. The group of `host` is the same.
  absl::Status Start(Communicator& host);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override;
  absl::Status ReduceScatterSum(float* data, int64_t share) override;
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override;
  absl::Status AllGatherTogether(std::span<const Gathering> gatherings) override;
  absl::Status AllToAll(const void* mine, int64_t bytes, int64_t stride, void* all) override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override;
  absl::Status Recv(int peer, void* data, int64_t bytes) override;
  bool Probe(int) override {
    LS_CHECK(false) << "groups of devices are not probed";
    return false;
  }
  absl::Status Barrier() override { return barrier_->Meet(options_.patience); }
  absl::Status Health() override { return group_->Health(); }
  void Abort() override { group_->End("the group was aborted"); }
  absl::Status Disconnect(Communicator& host) override;

 private:
  // What calls of NCCL's have left in the stream: no kernel overlaps it
  // (kernels/cuda/kernel_stream.h).
  absl::Status Issued(absl::Status launched) const {
    stream_.HoldNext();
    return launched;
  }
  absl::Status LaunchNccl(const NcclGroup::Operation& operation,
                          absl::FunctionRef<ncclResult_t(ncclComm_t)> call) {
    return Issued(group_->Launch(operation, options_.patience, call));
  }
  absl::Status AddUp(float* data, int64_t count);
  absl::Status Reduce(float* data, int64_t count);
  absl::Status Scatter(float* data, int64_t share);
  absl::Status GatherByOwn(std::span<const Gathering> gatherings, int64_t bytes_of_all);
  absl::Status GatherByNccl(std::span<const Gathering> gatherings, int64_t bytes_of_all);
  absl::Status CheckPeer(int peer) const;
  absl::Status MakeFirstExchange(Communicator& host);
  absl::Status ConnectAlgorithms(FirstExchange& first);
  absl::Status SendToNext(float* data);
  absl::Status StartOwnCollectives(Communicator& host);
  absl::Status ChooseLongest(Communicator& host);
  void TakeOwnUntried(int64_t sharing_rank);
  absl::Status TryLongSums(Communicator& host);
  absl::Status TryGatherings(Communicator& host);
  absl::StatusOr<bool> IsOwnFaster(Communicator& host, const IssueWork& own,
                                   const IssueWork& nccls) {
    return IsFaster(
        host, stream_, [this] { return Barrier(); }, own, nccls);
  }
  void LeaveOwnCollectives();

  const KernelStream stream_;
  const NcclOptions options_;
  std::unique_ptr<NcclBarrier> barrier_;
  std::unique_ptr<PeerCollectives> own_collectives_;  // null: NCCL carries everything
  std::unique_ptr<NcclTreeSums> tree_sums_;  // of deterministic groups, what those do not carry
  int64_t most_own_floats_ = 0;
  int64_t most_own_gathered_bytes_ = 0;  // of a rank
  std::unique_ptr<NcclGroup> group_;     // left first: its work uses the memory above
};

NcclCommunicator::~NcclCommunicator() {
  if (options_.forget_graphs != nullptr) options_.forget_graphs();
  if (own_collectives_ != nullptr && group_->Health().ok()) LeaveOwnCollectives();
}

// Nobody's kernels use the memory of others any more; then nobody has it open. Who does not hear of
// that frees nothing.
void NcclCommunicator::LeaveOwnCollectives() {
  if (!barrier_->Meet(kFarewell).ok()) return;
  own_collectives_->Disconnect();
  if (barrier_->Meet(kFarewell).ok()) own_collectives_->Free();
}

absl::Status NcclCommunicator::Disconnect(Communicator& host) {
  Abort();
  return own_collectives_ == nullptr ? absl::OkStatus() : own_collectives_->Leave(host);
}

absl::Status NcclCommunicator::StartOwnCollectives(Communicator& host) {
  absl::StatusOr<std::unique_ptr<PeerCollectives>> made = PeerCollectives::Create(host, stream_);
  if (absl::IsFailedPrecondition(made.status())) {
    if (rank() == 0 && options_.notice != nullptr) {
      options_.notice(
          absl::StrCat("what ranks exchange goes through NCCL alone: ", made.status().message()));
    }
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(made.status());
  own_collectives_ = *std::move(made);
  most_own_floats_ =
      options_.deterministic ? PeerCollectives::kMaxFloats : PeerCollectives::kOneShotFloats;
  most_own_gathered_bytes_ = PeerCollectives::kMaxGatheredBytes;
  group_->CallAtEnd([own = own_collectives_.get()] { own->Abort(); });
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Start(Communicator& host) {
  if (options_.own_collectives) RETURN_IF_ERROR(StartOwnCollectives(host));
  if (options_.deterministic) {
    ASSIGN_OR_RETURN(tree_sums_, NcclTreeSums::Create(*group_, stream_, options_.workspace_bytes,
                                                      options_.patience));
  }
  ASSIGN_OR_RETURN(barrier_, NcclBarrier::Create(*group_, stream_, options_.patience));
  RETURN_IF_ERROR(MakeFirstExchange(host));
  if (own_collectives_ != nullptr) RETURN_IF_ERROR(ChooseLongest(host));
  return Barrier();
}

// That our own kernels carry: alike on all ranks.
absl::Status NcclCommunicator::ChooseLongest(Communicator& host) {
  const char shares = options_.shares_device ? 1 : 0;
  std::vector<char> all(size());
  RETURN_IF_ERROR(host.AllGather(&shares, sizeof(shares), all.data()));
  const auto sharing = std::find(all.begin(), all.end(), 1);
  if (sharing == all.end()) {
    if (!options_.deterministic) RETURN_IF_ERROR(TryLongSums(host));
    return TryGatherings(host);
  }
  TakeOwnUntried(sharing - all.begin());
  return absl::OkStatus();
}

// Ranks meet twice in the longest of them, and each time wait for the device's turns; NCCL's meet
// more often, some by way of the host.
void NcclCommunicator::TakeOwnUntried(int64_t sharing_rank) {
  most_own_floats_ = PeerCollectives::kMaxFloats;
  if (rank() != 0 || options_.notice == nullptr) return;
  options_.notice(absl::StrFormat(
      "what ranks exchange is not timed, as rank %d shares its GPU: sums of up to %d MiB and "
      "gatherings of up to %d KiB of a rank are our own kernels', longer ones NCCL's",
      sharing_rank, most_own_floats_ * int64_t{sizeof(float)} >> 20,
      most_own_gathered_bytes_ >> 10));
}

// Doubles the size for as long as our own kernel is faster, on the whole group; a size at which it
// was not may have been measured at a bad time, two in a row have not.
absl::Status NcclCommunicator::TryLongSums(Communicator& host) {
  const int64_t most = std::min(PeerCollectives::kMaxFloats,
                                options_.connect_bytes / static_cast<int64_t>(sizeof(float)));
  if (most <= PeerCollectives::kOneShotFloats) return absl::OkStatus();
  ASSIGN_OR_RETURN(const DeviceArray<float> scratch,
                   AllocateOnDevice<float>(most, "sums that are timed"));
  RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(scratch.get(), 0, static_cast<size_t>(most) * sizeof(float), stream_),
      "sums that are timed"));
  int num_slower = 0;
  for (int64_t count = PeerCollectives::kOneShotFloats; count < most && num_slower < 2;) {
    count = std::min(2 * count, most);
    ASSIGN_OR_RETURN(const bool is_faster,
                     IsOwnFaster(
                         host, [&] { return own_collectives_->LaunchSum(scratch.get(), count); },
                         [&] { return Reduce(scratch.get(), count); }));
    num_slower = is_faster ? 0 : num_slower + 1;
    if (is_faster) most_own_floats_ = count;
  }
  return Barrier();  // before the memory goes
}

// Halves the size for as long as NCCL is faster. The shortest, which are latency alone, are ours
// anyway, and all are where NCCL was not connected for the longest.
absl::Status NcclCommunicator::TryGatherings(Communicator& host) {
  constexpr int64_t kLeastBytes = 16 << 10;
  const int64_t most = most_own_gathered_bytes_;
  if (most * size() > options_.connect_bytes) return absl::OkStatus();
  ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                   AllocateOnDevice<std::byte>(most * size(), "gatherings that are timed"));
  for (; most_own_gathered_bytes_ > kLeastBytes; most_own_gathered_bytes_ /= 2) {
    const int64_t bytes = most_own_gathered_bytes_;
    const Gathering rows[] = {{scratch.get() + rank() * bytes, bytes, scratch.get()}};
    ASSIGN_OR_RETURN(const bool is_faster, IsOwnFaster(
                                               host, [&] { return GatherByOwn(rows, bytes); },
                                               [&] { return GatherByNccl(rows, bytes); }));
    if (is_faster) break;
  }
  return Barrier();  // before the memory goes
}

absl::Status NcclCommunicator::MakeFirstExchange(Communicator& host) {
  const int64_t count = options_.connect_bytes / static_cast<int64_t>(sizeof(float));
  barrier_->set_advice(kBrokenPeerAccess);
  ASSIGN_OR_RETURN(FirstExchange first,
                   FirstExchange::Create({rank(), size(), stream_, [this] { return Barrier(); }},
                                         std::max<int64_t>(count, 2 * size())));
  RETURN_IF_ERROR(ConnectAlgorithms(first));
  barrier_->set_advice("");
  return first.Agreed(host);
}

// NCCL takes another algorithm for other sizes (NCCL User Guide, NCCL_RUNTIME_CONNECT). Its own
// exchanges, whoever makes those of a size later; of deterministic groups, for which it only
// carries numbers, a barrier's, and an exchange, which for all sizes goes the same ways.
absl::Status NcclCommunicator::ConnectAlgorithms(FirstExchange& first) {
  const int64_t count = options_.connect_bytes / static_cast<int64_t>(sizeof(float));
  float* const data = first.data();
  int64_t reduced = 0;
  while (reduced < count) {
    reduced = std::clamp<int64_t>(16 * reduced, 1, count);
    const int64_t share = std::max<int64_t>(reduced / size(), 1);
    if (!options_.deterministic || reduced == 1) {
      RETURN_IF_ERROR(first.TrySum(reduced, [&] { return Reduce(data, reduced); }));
      RETURN_IF_ERROR(first.TryScatter(share, [&] { return Scatter(data, share); }));
    }
    const Gathering one[] = {
        {data + rank() * share, share * static_cast<int64_t>(sizeof(float)), data}};
    RETURN_IF_ERROR(first.TryGather(share, [&] { return GatherByNccl(one, one[0].bytes); }));
  }
  if (!options_.connects_pairs) return first.TryNext([&] { return SendToNext(data); });
  return first.TryAllToAll(
      [&] { return AllToAll(data, sizeof(float), sizeof(float), data + size()); });
}

// Those between which pipelines send: each to the next, the last to the first.
absl::Status NcclCommunicator::SendToNext(float* data) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  return LaunchNccl({"a first message"}, [&](ncclComm_t comm) {
    ncclGroupStart();
    const ncclResult_t sent = ncclSend(data, 1, ncclFloat32, next, comm, stream_);
    const ncclResult_t received = ncclRecv(data + 1, 1, ncclFloat32, previous, comm, stream_);
    const ncclResult_t ended = ncclGroupEnd();
    if (sent != ncclSuccess) return sent;
    return received != ncclSuccess ? received : ended;
  });
}

absl::Status NcclCommunicator::AllReduceSum(float* data, int64_t count) {
  if (count == 0) return group_->Health();
  if (count <= most_own_floats_) return AddUp(data, count);
  return options_.deterministic ? Issued(tree_sums_->AllReduce(data, count)) : Reduce(data, count);
}

absl::Status NcclCommunicator::ReduceScatterSum(float* data, int64_t share) {
  if (share == 0) return group_->Health();
  return share * size() <= most_own_floats_ ? AddUp(data, share * size()) : Scatter(data, share);
}

absl::Status NcclCommunicator::AddUp(float* data, int64_t count) {
  RETURN_IF_ERROR(group_->Note(
      {count <= PeerCollectives::kOneShotFloats ? "one-shot all-reduce" : "two-shot all-reduce",
       count * static_cast<int64_t>(sizeof(float))}));
  return own_collectives_->LaunchSum(data, count);
}

absl::Status NcclCommunicator::Reduce(float* data, int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  return LaunchNccl({"all-reduce", bytes}, [&](ncclComm_t comm) {
    return ncclAllReduce(data, data, static_cast<size_t>(count), ncclFloat32, ncclSum, comm,
                         stream_);
  });
}

absl::Status NcclCommunicator::Scatter(float* data, int64_t share) {
  if (options_.deterministic) return Issued(tree_sums_->ReduceScatter(data, share));
  const int64_t bytes = share * static_cast<int64_t>(sizeof(float));
  return LaunchNccl({"reduce-scatter", bytes}, [&](ncclComm_t comm) {
    return ncclReduceScatter(data, data + rank() * share, static_cast<size_t>(share), ncclFloat32,
                             ncclSum, comm, stream_);
  });
}

absl::Status NcclCommunicator::AllGather(const void* mine, int64_t bytes, void* all) {
  const Gathering one[] = {{mine, bytes, all}};
  return AllGatherTogether(one);
}

absl::Status NcclCommunicator::AllGatherTogether(std::span<const Gathering> gatherings) {
  int64_t bytes_of_all = 0;
  for (const Gathering& gathering : gatherings) bytes_of_all += gathering.bytes;
  if (bytes_of_all == 0) return group_->Health();
  if (bytes_of_all <= most_own_gathered_bytes_) return GatherByOwn(gatherings, bytes_of_all);
  return GatherByNccl(gatherings, bytes_of_all);
}

absl::Status NcclCommunicator::GatherByNccl(std::span<const Gathering> gatherings,
                                            int64_t bytes_of_all) {
  return LaunchNccl({"all-gather", bytes_of_all}, [&](ncclComm_t comm) {
    ncclResult_t result = ncclGroupStart();
    for (const auto& [mine, bytes, all] : gatherings) {
      if (bytes == 0 || result != ncclSuccess) continue;
      result = ncclAllGather(mine, all, static_cast<size_t>(bytes), ncclInt8, comm, stream_);
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
  });
}

absl::Status NcclCommunicator::GatherByOwn(std::span<const Gathering> gatherings,
                                           int64_t bytes_of_all) {
  RETURN_IF_ERROR(group_->Note({"one-shot all-gather", bytes_of_all}));
  for (const auto& [mine, bytes, all] : gatherings) {
    RETURN_IF_ERROR(own_collectives_->LaunchGather(mine, bytes, all));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AllToAll(const void* mine, int64_t bytes, int64_t stride,
                                        void* all) {
  return Issued(LaunchExchange(*group_,
                               {static_cast<const std::byte*>(mine), stride,
                                static_cast<std::byte*>(all), stride, bytes, /*with_own=*/true},
                               options_.patience, stream_));
}

absl::Status NcclCommunicator::CheckPeer(int peer) const {
  if (peer >= 0 && peer < size() && peer != rank()) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("rank %d of %d has no peer %d", rank(), size(), peer));
}

absl::Status NcclCommunicator::Send(int peer, const void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckPeer(peer));
  if (bytes == 0) return group_->Health();
  return LaunchNccl({"send", bytes, peer}, [&](ncclComm_t comm) {
    return ncclSend(data, static_cast<size_t>(bytes), ncclInt8, peer, comm, stream_);
  });
}

absl::Status NcclCommunicator::Recv(int peer, void* data, int64_t bytes) {
  RETURN_IF_ERROR(CheckPeer(peer));
  if (bytes == 0) return group_->Health();
  return LaunchNccl({"receive", bytes, peer}, [&](ncclComm_t comm) {
    return ncclRecv(data, static_cast<size_t>(bytes), ncclInt8, peer, comm, stream_);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(Communicator& bootstrap,
                                                                   const KernelStream& stream,
                                                                   const NcclOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<NcclGroup> group,
                   NcclGroup::Join(bootstrap, {.max_thread_blocks = options.max_thread_blocks,
                                               .siblings = options.siblings != nullptr
                                                               ? options.siblings
                                                               : std::make_shared<NcclSiblings>(),
                                               .patience = options.start_patience}));
  auto communicator = std::make_unique<NcclCommunicator>(std::move(group), stream, options);
  const absl::Status started = communicator->Start(bootstrap);
  if (started.ok()) return communicator;
  communicator->Abort();  // nobody meets a rank that has given up to leave together
  return started;
}

}  // namespace lockstep::cuda
