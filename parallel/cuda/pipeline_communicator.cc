#include "parallel/cuda/pipeline_communicator.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_group.h"

namespace lockstep::cuda {
namespace {

// Of a kernel that sends or receives: enough for a network card, and little to take from the
// kernels beside which it waits for its peer (an H100 has 132 multiprocessors).
constexpr int kMaxThreadBlocks = 4;

// `later` goes on when the work is done that `earlier` has now.
absl::Status Order(cudaStream_t earlier, cudaEvent_t event, cudaStream_t later) {
  RETURN_IF_ERROR(CudaStatus(cudaEventRecord(event, earlier), "passing a slot on"));
  return CudaStatus(cudaStreamWaitEvent(later, event, 0), "waiting for a slot");
}

// One link of the rank, its stream and its slot; or a communicator of which the rank has no link.
class Lane {
 public:
  explicit Lane(cudaStream_t compute) : compute_(compute) {}
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  absl::Status Start(Communicator& bootstrap, const NcclOptions& options);

  void UseSlot(DeviceBuffer slot) { slot_ = std::move(slot); }
  Communicator& group() { return *group_; }
  absl::Status Send(int peer, const std::byte* data, int64_t bytes);
  absl::Status Recv(int peer, std::byte* data, int64_t bytes);
  // Work of the communicator that takes its turn among the compute stream's.
  absl::Status InTurn(absl::FunctionRef<absl::Status(Communicator&)> call);

 private:
  absl::Status Copy(void* to, const void* from, int64_t bytes);

  const cudaStream_t compute_;
  cudaStream_t stream_ = nullptr;
  // What each stream has last done with the slot. One that was never recorded is not waited for.
  cudaEvent_t compute_done_ = nullptr;
  cudaEvent_t stream_done_ = nullptr;
  DeviceBuffer slot_;
  std::unique_ptr<Communicator> group_;  // left first: its work uses the slot
};

Lane::~Lane() {
  group_.reset();
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (compute_done_ != nullptr) cudaEventDestroy(compute_done_);
  if (stream_done_ != nullptr) cudaEventDestroy(stream_done_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Lane::Start(Communicator& bootstrap, const NcclOptions& options) {
  int least = 0;
  int greatest = 0;
  RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  // A send shall find its place before the next step's kernels have taken all.
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "a link's stream"));
  for (cudaEvent_t* event : {&compute_done_, &stream_done_}) {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "a link's event"));
  }
  ASSIGN_OR_RETURN(group_, MakeNcclCommunicator(bootstrap, stream_, options));
  return absl::OkStatus();
}

absl::Status Lane::Copy(void* to, const void* from, int64_t bytes) {
  return CudaStatus(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, compute_),
      "copying a message");
}

absl::Status Lane::Send(int peer, const std::byte* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += slot_.bytes()) {
    const int64_t piece = std::min(slot_.bytes(), bytes - at);
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamWaitEvent(compute_, stream_done_, 0), "waiting for a slot"));
    RETURN_IF_ERROR(Copy(slot_.data(), data + at, piece));
    RETURN_IF_ERROR(Order(compute_, compute_done_, stream_));
    RETURN_IF_ERROR(group_->Send(peer, slot_.data(), piece));
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(stream_done_, stream_), "a message's end"));
  }
  return absl::OkStatus();
}

absl::Status Lane::Recv(int peer, std::byte* data, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += slot_.bytes()) {
    const int64_t piece = std::min(slot_.bytes(), bytes - at);
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamWaitEvent(stream_, compute_done_, 0), "waiting for a slot"));
    RETURN_IF_ERROR(group_->Recv(peer, slot_.data(), piece));
    RETURN_IF_ERROR(Order(stream_, stream_done_, compute_));
    RETURN_IF_ERROR(Copy(data + at, slot_.data(), piece));
    RETURN_IF_ERROR(CudaStatus(cudaEventRecord(compute_done_, compute_), "a message's end"));
  }
  return absl::OkStatus();
}

absl::Status Lane::InTurn(absl::FunctionRef<absl::Status(Communicator&)> call) {
  RETURN_IF_ERROR(Order(compute_, compute_done_, stream_));
  RETURN_IF_ERROR(call(*group_));
  return Order(stream_, stream_done_, compute_);
}

class PipelineCommunicator final : public Communicator {
 public:
  // links: those to the previous and the next rank, null where there is none.
  PipelineCommunicator(std::vector<std::unique_ptr<Lane>> lanes, Lane* previous, Lane* next)
      : lanes_(std::move(lanes)), previous_(previous), next_(next) {}

  int rank() const override { return any().rank(); }
  int size() const override { return any().size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override {
    return lanes_[0]->InTurn([&](Communicator& group) { return group.AllReduceSum(data, count); });
  }
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override {
    return lanes_[0]->InTurn(
        [&](Communicator& group) { return group.AllGather(mine, bytes, all); });
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    ASSIGN_OR_RETURN(Lane * lane, LaneTo(peer));
    if (bytes == 0) return Health();
    return lane->Send(peer, static_cast<const std::byte*>(data), bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    ASSIGN_OR_RETURN(Lane * lane, LaneTo(peer));
    if (bytes == 0) return Health();
    return lane->Recv(peer, static_cast<std::byte*>(data), bytes);
  }
  bool Probe(int) override {
    LS_CHECK(false) << "groups of devices are not probed";
    return false;
  }
  absl::Status Barrier() override {
    return lanes_[0]->InTurn([](Communicator& group) { return group.Barrier(); });
  }
  absl::Status Health() override {
    for (const std::unique_ptr<Lane>& lane : lanes_) RETURN_IF_ERROR(lane->group().Health());
    return absl::OkStatus();
  }
  void Abort() override {
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->group().Abort();
  }

 private:
  Communicator& any() const { return lanes_[0]->group(); }
  absl::StatusOr<Lane*> LaneTo(int peer) const {
    Lane* const lane = peer == rank() + 1 ? next_ : peer == rank() - 1 ? previous_ : nullptr;
    if (lane != nullptr) return lane;
    return absl::InternalError(
        absl::StrFormat("rank %d of %d has no link to %d", rank(), size(), peer));
  }

  const std::vector<std::unique_ptr<Lane>> lanes_;
  Lane* const previous_;
  Lane* const next_;
};

absl::Status CheckSlots(Communicator& bootstrap, const PipelineOptions& options) {
  using Bytes = std::array<int64_t, 2>;  // of the slots from the previous and to the next rank
  const Bytes mine = {options.from_previous.bytes(), options.to_next.bytes()};
  std::vector<Bytes> all(static_cast<size_t>(bootstrap.size()));
  RETURN_IF_ERROR(bootstrap.AllGather(mine.data(), sizeof(mine), all.data()));
  for (size_t rank = 0; rank + 1 < all.size(); ++rank) {
    const auto [sent, received] = std::pair(all[rank][1], all[rank + 1][0]);
    if (sent > 0 && sent == received) continue;
    return absl::InternalError(
        absl::StrFormat("rank %d sends messages of %d bytes, rank %d receives them in %d", rank,
                        sent, rank + 1, received));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakePipelineCommunicator(Communicator& bootstrap,
                                                                       cudaStream_t compute,
                                                                       PipelineOptions options) {
  RETURN_IF_ERROR(CheckSlots(bootstrap, options));
  NcclOptions nccl;
  nccl.siblings = options.siblings != nullptr ? options.siblings : std::make_shared<NcclSiblings>();
  nccl.start_patience = options.start_patience;
  nccl.patience = options.patience;
  nccl.connect_bytes = sizeof(float);  // nobody sums up over stages
  nccl.max_thread_blocks = kMaxThreadBlocks;
  const int rank = bootstrap.rank();
  const int num_lanes = std::min(bootstrap.size() - 1, 2);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < num_lanes; ++i) {
    lanes.push_back(std::make_unique<Lane>(compute));
    RETURN_IF_ERROR(lanes.back()->Start(bootstrap, nccl));
  }
  // The link between ranks r and r + 1 has lane r mod 2.
  const auto lane_of_link = [&](int link, DeviceBuffer& slot) -> Lane* {
    if (link < 0 || link + 1 >= bootstrap.size()) return nullptr;
    Lane* lane = lanes[static_cast<size_t>(link % 2)].get();
    lane->UseSlot(std::move(slot));
    return lane;
  };
  Lane* const previous = lane_of_link(rank - 1, options.from_previous);
  Lane* const next = lane_of_link(rank, options.to_next);
  return std::make_unique<PipelineCommunicator>(std::move(lanes), previous, next);
}

}  // namespace lockstep::cuda
