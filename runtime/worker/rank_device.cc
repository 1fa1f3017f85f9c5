#include "runtime/worker/rank_device.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu_backend_options.h"
#include "parallel/device_communicators.h"
#include "parallel/nccl_environment.h"

namespace lockstep {

RankDevice::RankDevice() {
  own_groups_.tp = std::make_unique<RenewableCommunicator>(MakeSelfCommunicator());
  own_groups_.pp = std::make_unique<RenewableCommunicator>(MakeSelfCommunicator());
  tp_ = static_cast<RenewableCommunicator*>(own_groups_.tp.get());
  pp_ = static_cast<RenewableCommunicator*>(own_groups_.pp.get());
}

absl::StatusOr<std::unique_ptr<RankDevice>> RankDevice::Open(const DeviceOptions& options,
                                                             DType compute, const Notice& notice) {
  std::unique_ptr<RankDevice> device(new RankDevice);
  device->notice_ = notice;
  if (!options.gpu.has_value()) {
    ASSIGN_OR_RETURN(device->backend_, MakeCpuBackend(options.cpu));
    return device;
  }
  ASSIGN_OR_RETURN(const GpusHere here, FindGpus());
  const auto [gpu, num_sharing, job_shares_gpus] = *options.gpu;
  LeaveRecordingsUnregistered();
  if (job_shares_gpus) LetRanksShareAGpu();
  if (num_sharing > 1 && notice != nullptr) {
    notice(absl::StrCat(num_sharing, " ranks share GPU ", gpu, ": good for tests, not for speed"));
  }
  ASSIGN_OR_RETURN(device->backend_,
                   here.accelerator->MakeBackend(
                       {.device = gpu,
                        .compute = compute,
                        .deterministic = options.deterministic,
                        // Kernels that begin early hold room that a peer's may need first.
                        .overlap_kernels = num_sharing == 1,
                        .memory_fraction = options.gpu_memory_utilization / num_sharing,
                        .is_shared = num_sharing > 1,
                        .notice = notice}));
  device->gpu_ = gpu;
  device->gpus_ = here.gpus;
  device->communicators_ = &here.accelerator->communicators();
  return device;
}

absl::StatusOr<GpusHere> FindGpus() {
  ASSIGN_OR_RETURN(Accelerator * accelerator, OpenAccelerator());
  ASSIGN_OR_RETURN(std::vector<AcceleratorInfo> gpus, accelerator->Devices());
  if (std::all_of(gpus.begin(), gpus.end(),
                  [](const AcceleratorInfo& gpu) { return !gpu.refusal.empty(); })) {
    return absl::FailedPreconditionError(gpus.front().refusal);
  }
  return GpusHere{accelerator, std::move(gpus)};
}

// First nothing of the groups is under way here; then nobody has memory of theirs open; then they
// are gone, and the steps that were kept with them, for which NCCL would wait; at last, on all
// ranks, for some may share this GPU.
absl::Status RankDevice::LeaveGroups(RankGroups& host) {
  AbortGroups();
  backend_->Synchronize();
  RETURN_IF_ERROR(tp_->Disconnect(*host.tp));
  RETURN_IF_ERROR(pp_->Disconnect(*host.pp));
  tp_->Renew(MakeSelfCommunicator());
  pp_->Renew(MakeSelfCommunicator());
  RETURN_IF_ERROR(host.tp->Barrier());
  return host.pp->Barrier();
}

absl::Status RankDevice::Join(RankGroups& host, const MessageSizes& sizes) {
  if (communicators_ == nullptr) {
    groups_ = &host;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(LeaveGroups(host));
  ASSIGN_OR_RETURN(RankGroups made, MakeDeviceGroups(*communicators_, *backend_, host,
                                                     {.max_hidden_states = sizes.max_hidden_states,
                                                      .bytes_back = sizes.bytes_back,
                                                      .notice = notice_}));
  tp_->Renew(std::move(made.tp));
  pp_->Renew(std::move(made.pp));
  own_groups_.most_whole_bytes_from_previous = made.most_whole_bytes_from_previous;
  own_groups_.most_whole_bytes_to_next = made.most_whole_bytes_to_next;
  own_groups_.most_undivided_bytes = made.most_undivided_bytes;
  return absl::OkStatus();
}

void RankDevice::AbortGroups() {
  tp_->Abort();
  pp_->Abort();
}

}  // namespace lockstep
