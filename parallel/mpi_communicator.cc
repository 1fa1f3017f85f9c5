#include "parallel/mpi_communicator.h"

#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "parallel/all_reduce_trial.h"
#include "parallel/message_collectives.h"
#include "parallel/mpi_groups.h"
#include "parallel/mpi_messages.h"
#include "parallel/mpi_shared_region.h"
#include "parallel/shared_memory_collectives.h"

namespace lockstep {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  // Collective: ranks on one host map shared memory.
  MpiCommunicator(MpiHandle collectives, MpiHandle messages, const MpiGroupSettings& settings);

  // Keeps the faster way of doing collectives, where there are two. Collective.
  absl::Status ChooseByMeasurement();

  int rank() const override { return messages_.rank(); }
  int size() const override { return messages_.size(); }
  absl::Status AllReduceSum(float* data, int64_t count) override;
  absl::Status ReduceScatterSum(float* data, int64_t share) override;
  absl::Status AllGather(const void* mine, int64_t bytes, void* all) override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    return messages_.Send(peer, data, bytes);
  }
  absl::Status Recv(int peer, void* data, int64_t bytes) override {
    return messages_.Recv(peer, data, bytes);
  }
  bool Probe(int peer) override { return messages_.Probe(peer); }
  absl::Status Barrier() override;
  void Abort() override { messages_.interruption().Raise(); }

 private:
  const HostCollectives host_collectives_;
  MpiMessages messages_;
  MessageCollectives by_messages_;
  std::optional<MpiSharedRegion> region_;
  // In region_; does the collectives when there is one.
  std::optional<SharedMemoryCollectives> shared_;
};

MpiCommunicator::MpiCommunicator(MpiHandle collectives, MpiHandle messages,
                                 const MpiGroupSettings& settings)
    : host_collectives_(settings.options.host_collectives),
      messages_(std::move(collectives), std::move(messages), settings),
      by_messages_(messages_, settings.options.small_all_reduce_bytes) {
  if (host_collectives_ == HostCollectives::kMessages) return;
  region_ =
      MpiSharedRegion::Map(messages_.collectives(), SharedMemoryCollectives::BytesNeeded(size()));
  if (region_.has_value()) {
    shared_.emplace(region_->data(), rank(), size(), settings.may_spin, messages_.interruption());
  }
}

absl::Status MpiCommunicator::ChooseByMeasurement() {
  if (!shared_.has_value() || host_collectives_ != HostCollectives::kMeasured) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const float shared, TryAllReduce([this](float* data, int64_t count) {
                     return shared_->AllReduceSum(data, count);
                   }));
  ASSIGN_OR_RETURN(const float messages, TryAllReduce([this](float* data, int64_t count) {
                     return by_messages_.AllReduceSum(data, count);
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
  RETURN_IF_ERROR(messages_.Health());
  if (count == 0) return absl::OkStatus();
  return shared_.has_value() ? shared_->AllReduceSum(data, count)
                             : by_messages_.AllReduceSum(data, count);
}

absl::Status MpiCommunicator::ReduceScatterSum(float* data, int64_t share) {
  RETURN_IF_ERROR(messages_.Health());
  if (share == 0) return absl::OkStatus();
  return shared_.has_value() ? shared_->ReduceScatterSum(data, share)
                             : by_messages_.ReduceScatterSum(data, share);
}

absl::Status MpiCommunicator::AllGather(const void* mine, int64_t bytes, void* all) {
  RETURN_IF_ERROR(messages_.Health());
  return shared_.has_value() ? shared_->AllGather(mine, bytes, all)
                             : by_messages_.AllGather(mine, bytes, all);
}

absl::Status MpiCommunicator::Barrier() {
  RETURN_IF_ERROR(messages_.Health());
  return shared_.has_value() ? shared_->Barrier() : by_messages_.Barrier();
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
