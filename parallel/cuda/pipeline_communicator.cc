#include "parallel/cuda/pipeline_communicator.h"

#include <algorithm>
#include <array>
#include <deque>
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

  // The compute stream may still be clearing the slot.
  absl::Status UseSlot(DeviceBuffer slot);
  Communicator& group() { return *group_; }
  absl::Status Send(int peer, const std::byte* data, int64_t bytes);
  absl::Status Recv(int peer, std::byte* data, int64_t bytes);
  absl::Status StartRecv(int peer, void* data, int64_t bytes);
  absl::Status FinishRecv();
  // Work of the communicator that takes its turn among the compute stream's.
  absl::Status InTurn(absl::FunctionRef<absl::Status(Communicator&)> call);

 private:
  absl::Status Copy(void* to, const void* from, int64_t bytes);
  absl::StatusOr<cudaEvent_t> TakeEvent();

  const cudaStream_t compute_;
  cudaStream_t stream_ = nullptr;
  // What each stream has last done with the slot. One that was never recorded is not waited for.
  cudaEvent_t compute_done_ = nullptr;
  cudaEvent_t stream_done_ = nullptr;
  std::deque<cudaEvent_t> arrivals_;  // of the receives started and not finished
  std::vector<cudaEvent_t> spare_events_;
  DeviceBuffer slot_;
  std::unique_ptr<Communicator> group_;  // left first: its work uses the slot
};

Lane::~Lane() {
  group_.reset();
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (compute_done_ != nullptr) cudaEventDestroy(compute_done_);
  if (stream_done_ != nullptr) cudaEventDestroy(stream_done_);
  for (cudaEvent_t event : arrivals_) cudaEventDestroy(event);
  for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
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

absl::Status Lane::UseSlot(DeviceBuffer slot) {
  slot_ = std::move(slot);
  return CudaStatus(cudaEventRecord(compute_done_, compute_), "clearing a slot");
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

absl::StatusOr<cudaEvent_t> Lane::TakeEvent() {
  cudaEvent_t event = nullptr;
  if (spare_events_.empty()) {
    RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a message's event"));
  } else {
    event = spare_events_.back();
    spare_events_.pop_back();
  }
  return event;
}

// Begins behind the compute stream's work, which may still use the memory; before, it could only
// keep room from it.
absl::Status Lane::StartRecv(int peer, void* data, int64_t bytes) {
  RETURN_IF_ERROR(Order(compute_, compute_done_, stream_));
  RETURN_IF_ERROR(group_->Recv(peer, data, bytes));
  ASSIGN_OR_RETURN(cudaEvent_t event, TakeEvent());
  arrivals_.push_back(event);
  return CudaStatus(cudaEventRecord(event, stream_), "a message's end");
}

absl::Status Lane::FinishRecv() {
  LS_CHECK(!arrivals_.empty()) << "no receive was started";
  cudaEvent_t event = arrivals_.front();
  arrivals_.pop_front();
  spare_events_.push_back(event);
  return CudaStatus(cudaStreamWaitEvent(compute_, event, 0), "waiting for a message");
}

absl::Status Lane::InTurn(absl::FunctionRef<absl::Status(Communicator&)> call) {
  RETURN_IF_ERROR(Order(compute_, compute_done_, stream_));
  RETURN_IF_ERROR(call(*group_));
  return Order(stream_, stream_done_, compute_);
}

class PipelineCommunicator final : public Communicator {
 public:
  // Null where there is none.
  struct Links {
    Lane* previous = nullptr;
    Lane* next = nullptr;
    Lane* way_back = nullptr;  // of the first and the last rank
  };
  PipelineCommunicator(std::vector<std::unique_ptr<Lane>> lanes, const Links& links)
      : lanes_(std::move(lanes)), links_(links) {}

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
    ASSIGN_OR_RETURN(Lane * lane, LaneTo(peer, /*goes_back=*/peer == 0 && rank() == size() - 1));
    if (bytes == 0) return Health();
    return lane->Send(peer, static_cast<const std::byte*>(data), bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    ASSIGN_OR_RETURN(Lane * lane, LaneTo(peer, /*goes_back=*/rank() == 0 && peer == size() - 1));
    if (bytes == 0) return Health();
    return lane->Recv(peer, static_cast<std::byte*>(data), bytes);
  }
  absl::Status StartRecv(int peer, void* data, int64_t bytes) override {
    RETURN_IF_ERROR(CheckWayBack(peer));
    return links_.way_back->StartRecv(peer, data, bytes);
  }
  absl::Status FinishRecv(int peer) override {
    RETURN_IF_ERROR(CheckWayBack(peer));
    return links_.way_back->FinishRecv();
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
  absl::StatusOr<Lane*> LaneTo(int peer, bool goes_back) const {
    if (goes_back && links_.way_back != nullptr) return links_.way_back;
    Lane* const lane = peer == rank() + 1   ? links_.next
                       : peer == rank() - 1 ? links_.previous
                                            : nullptr;
    if (lane != nullptr) return lane;
    return NoLink(peer);
  }
  absl::Status CheckWayBack(int peer) const {
    const bool has_one = rank() == 0 && peer == size() - 1 && links_.way_back != nullptr;
    return has_one ? absl::OkStatus() : NoLink(peer);
  }
  absl::Status NoLink(int peer) const {
    return absl::InternalError(
        absl::StrFormat("rank %d of %d has no link to %d", rank(), size(), peer));
  }

  const std::vector<std::unique_ptr<Lane>> lanes_;
  const Links links_;
};

// Whether there is a way back.
absl::StatusOr<bool> CheckSlots(Communicator& bootstrap, const PipelineOptions& options) {
  using Bytes = std::array<int64_t, 3>;  // of the slots from the previous, to the next, back
  const Bytes mine = {options.from_previous.bytes(), options.to_next.bytes(),
                      options.way_back.bytes()};
  std::vector<Bytes> all(static_cast<size_t>(bootstrap.size()));
  RETURN_IF_ERROR(bootstrap.AllGather(mine.data(), sizeof(mine), all.data()));
  for (size_t rank = 0; rank + 1 < all.size(); ++rank) {
    const auto [sent, received] = std::pair(all[rank][1], all[rank + 1][0]);
    if (sent > 0 && sent == received) continue;
    return absl::InternalError(
        absl::StrFormat("rank %d sends messages of %d bytes, rank %d receives them in %d", rank,
                        sent, rank + 1, received));
  }
  if (all.front()[2] == all.back()[2]) return all.front()[2] > 0;
  return absl::InternalError(
      absl::StrFormat("messages back are of %d bytes on the last rank, of %d on the first",
                      all.back()[2], all.front()[2]));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakePipelineCommunicator(Communicator& bootstrap,
                                                                       cudaStream_t compute,
                                                                       PipelineOptions options) {
  ASSIGN_OR_RETURN(const bool has_way_back, CheckSlots(bootstrap, options));
  NcclOptions nccl;
  nccl.siblings = options.siblings != nullptr ? options.siblings : std::make_shared<NcclSiblings>();
  nccl.start_patience = options.start_patience;
  nccl.patience = options.patience;
  nccl.connect_bytes = sizeof(float);  // nobody sums up over stages
  nccl.max_thread_blocks = kMaxThreadBlocks;
  const int rank = bootstrap.rank();
  // The link between ranks r and r + 1 has lane r mod 2, the one back from the last rank as well if
  // the first one's is then another.
  const int num_ranks = bootstrap.size();
  const int lane_back = num_ranks % 2 == 0 ? 1 : 2;
  const int num_lanes = has_way_back ? lane_back + 1 : std::min(num_ranks - 1, 2);
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < num_lanes; ++i) {
    lanes.push_back(std::make_unique<Lane>(compute));
    RETURN_IF_ERROR(lanes.back()->Start(bootstrap, nccl));
  }
  PipelineCommunicator::Links links;
  const auto link_over = [&](int lane, DeviceBuffer& slot, Lane*& link) {
    if (slot.bytes() == 0) return absl::OkStatus();
    link = lanes[static_cast<size_t>(lane)].get();
    return link->UseSlot(std::move(slot));
  };
  RETURN_IF_ERROR(link_over((rank + 1) % 2, options.from_previous, links.previous));
  RETURN_IF_ERROR(link_over(rank % 2, options.to_next, links.next));
  RETURN_IF_ERROR(link_over(lane_back, options.way_back, links.way_back));
  return std::make_unique<PipelineCommunicator>(std::move(lanes), links);
}

}  // namespace lockstep::cuda
