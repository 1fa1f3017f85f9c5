#include "parallel/cuda/nccl_tree_sums.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/nccl_exchange.h"
#include "parallel/cuda/tree_sum_kernel.h"

namespace lockstep::cuda {
namespace {

// In whole vectors of 16 bytes, where there are as many: NCCL copies those fastest.
int64_t ChunkOf(int64_t workspace_bytes, int size) {
  const int64_t chunk = workspace_bytes / static_cast<int64_t>(sizeof(float)) / size;
  LS_CHECK(chunk > 0) << "a workspace of " << workspace_bytes << " bytes";
  return chunk < 4 ? chunk : chunk / 4 * 4;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclTreeSums>> NcclTreeSums::Create(
    NcclGroup& group, cudaStream_t stream, int64_t workspace_bytes,
    std::chrono::milliseconds patience) {
  std::unique_ptr<NcclTreeSums> sums(new NcclTreeSums(group, stream, patience));
  sums->chunk_ = ChunkOf(workspace_bytes, group.size());
  ASSIGN_OR_RETURN(
      sums->workspace_,
      AllocateOnDevice<float>(sums->chunk_ * group.size(), "the workspace of deterministic sums"));
  return sums;
}

// Long ones in shares; what they leave over is shorter than the group is large.
absl::Status NcclTreeSums::AllReduce(float* data, int64_t count) {
  constexpr int64_t kMostGatheredFloats = int64_t{64} << 10;
  if (count <= kMostGatheredFloats) return GatherAndSum(data, count);
  const int64_t share = count / group_.size();
  RETURN_IF_ERROR(ReduceScatter(data, share));
  RETURN_IF_ERROR(Gather(data + group_.rank() * share, share, data));
  return GatherAndSum(data + share * group_.size(), count - share * group_.size());
}

absl::Status NcclTreeSums::GatherAndSum(float* data, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += chunk_) {
    const int64_t length = std::min(chunk_, count - begin);
    RETURN_IF_ERROR(Gather(data + begin, length, workspace_.get()));
    RETURN_IF_ERROR(SumParts(length, data + begin));
  }
  return absl::OkStatus();
}

absl::Status NcclTreeSums::ReduceScatter(float* data, int64_t share) {
  for (int64_t begin = 0; begin < share; begin += chunk_) {
    const int64_t length = std::min(chunk_, share - begin);
    RETURN_IF_ERROR(Exchange(data, share, begin, length));
    RETURN_IF_ERROR(SumParts(length, data + group_.rank() * share + begin));
  }
  return absl::OkStatus();
}

// Everybody gets, of its share of all ranks' data, [begin, begin + length) into the workspace.
absl::Status NcclTreeSums::Exchange(const float* data, int64_t share, int64_t begin,
                                    int64_t length) {
  constexpr int64_t kFloat = sizeof(float);
  return LaunchExchange(group_,
                        {.from = reinterpret_cast<const std::byte*>(data + begin),
                         .from_stride = share * kFloat,
                         .to = reinterpret_cast<std::byte*>(workspace_.get()),
                         .to_stride = length * kFloat,
                         .bytes = length * kFloat},
                        patience_, stream_);
}

// What lies in the workspace, this rank's part being its own.
absl::Status NcclTreeSums::SumParts(int64_t length, float* own) {
  return CudaStatus(
      LaunchTreeSum(workspace_.get(), group_.size(), length, group_.rank(), own, stream_),
      "adding up what ranks have sent");
}

absl::Status NcclTreeSums::Gather(const float* mine, int64_t count, float* all) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  return group_.Launch({"all-gather", bytes}, patience_, [&](ncclComm_t comm) {
    return ncclAllGather(mine, all, static_cast<size_t>(count), ncclFloat32, comm, stream_);
  });
}

}  // namespace lockstep::cuda
