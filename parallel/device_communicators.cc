#include "parallel/device_communicators.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "parallel/hand_over.h"

namespace lockstep {

absl::StatusOr<RankGroups> MakeDeviceGroups(DeviceCommunicators& communicators, Backend& backend,
                                            RankGroups& host, const DeviceGroupsOptions& options) {
  RankGroups groups;
  groups.most_whole_bytes_from_previous =
      std::min(host.most_whole_bytes_from_previous, kMostWholeBytesBetweenDevices);
  groups.most_whole_bytes_to_next =
      std::min(host.most_whole_bytes_to_next, kMostWholeBytesBetweenDevices);
  groups.most_undivided_bytes = options.most_undivided_bytes;
  const int64_t most_summed_bytes = options.max_hidden_states * static_cast<int64_t>(sizeof(float));
  // Of rows of logits.
  const bool exchanges_parts = host.pp->rank() + 1 == host.pp->size();
  ASSIGN_OR_RETURN(groups.tp, communicators.Make(backend, *host.tp,
                                                 {.most_summed_bytes = most_summed_bytes,
                                                  .exchanges_parts = exchanges_parts,
                                                  .notice = options.notice}));
  DeviceGroupOptions pipeline{
      .is_pipeline = true, .bytes_back = options.bytes_back, .notice = options.notice};
  const auto longest = [&](int64_t most_whole_bytes) {
    return LongestMessageBytes(options.max_hidden_states, host.tp->size(), most_whole_bytes);
  };
  if (host.pp->rank() > 0) {
    pipeline.bytes_from_previous = longest(groups.most_whole_bytes_from_previous);
  }
  if (host.pp->rank() + 1 < host.pp->size()) {
    pipeline.bytes_to_next = longest(groups.most_whole_bytes_to_next);
  }
  ASSIGN_OR_RETURN(groups.pp, communicators.Make(backend, *host.pp, pipeline));
  return groups;
}

}  // namespace lockstep
