#include "parallel/cuda/first_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "parallel/cuda/peer_memory.h"

namespace lockstep::cuda {
namespace {

constexpr char kFirstExchange[] = "a first exchange";
// A prime: neither ranks nor chunks, which are multiples of something, come to the same number.
// Whole numbers from 1 on: their sums are exact in every order, and nothing that was lost.
constexpr int64_t kPeriod = 1009;
float Number(int64_t rank, int64_t i) { return static_cast<float>((i + 97 * rank) % kPeriod + 1); }

constexpr int64_t kFloatBytes = sizeof(float);

}  // namespace

absl::StatusOr<FirstExchange> FirstExchange::Create(Place place, int64_t num_floats) {
  ASSIGN_OR_RETURN(DeviceArray<float> data, AllocateOnDevice<float>(num_floats, kFirstExchange));
  return FirstExchange(std::move(place), std::move(data), num_floats);
}

FirstExchange::FirstExchange(Place place, DeviceArray<float> data, int64_t num_floats)
    : place_(std::move(place)),
      mine_(static_cast<size_t>(num_floats)),
      found_(static_cast<size_t>(num_floats)),
      sums_(static_cast<size_t>(kPeriod)),
      data_(std::move(data)) {
  for (int64_t i = 0; i < num_floats; ++i) mine_[static_cast<size_t>(i)] = Number(place_.rank, i);
  for (int rank = 0; rank < place_.size; ++rank) {
    for (int64_t i = 0; i < kPeriod; ++i) sums_[static_cast<size_t>(i)] += Number(rank, i);
  }
}

absl::Status FirstExchange::Try(const Result& result, Issue issue,
                                absl::FunctionRef<float(int64_t)> expected) {
  const auto given = static_cast<size_t>(result.given) * sizeof(float);
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(data_.get(), mine_.data(), given, cudaMemcpyHostToDevice, place_.stream),
      kFirstExchange));
  RETURN_IF_ERROR(issue());
  // Before the host waits for a copy, which it would for ever where a peer is gone.
  RETURN_IF_ERROR(place_.meet());
  const auto begin = static_cast<size_t>(result.begin);
  const size_t bytes = static_cast<size_t>(result.end) * sizeof(float) - begin * sizeof(float);
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(&found_[begin], &data_[begin], bytes, cudaMemcpyDeviceToHost, place_.stream),
      kFirstExchange));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(place_.stream), kFirstExchange));
  for (int64_t i = result.begin; i < result.end && verdict_.ok(); ++i) {
    const float found = found_[static_cast<size_t>(i)];
    if (found == expected(i)) continue;
    verdict_ = absl::FailedPreconditionError(
        absl::StrFormat("NCCL's %s of %d bytes: number %d is %g instead of %g", result.name,
                        result.bytes, i - result.begin, found, expected(i)));
  }
  return absl::OkStatus();
}

absl::Status FirstExchange::TrySum(int64_t count, Issue issue) {
  return Try({"all-reduce", count * kFloatBytes, count, 0, count}, issue,
             [this](int64_t i) { return Sum(i); });
}

absl::Status FirstExchange::TryScatter(int64_t share, Issue issue) {
  const int64_t begin = place_.rank * share;
  return Try({"reduce-scatter", share * kFloatBytes, place_.size * share, begin, begin + share},
             issue, [this](int64_t i) { return Sum(i); });
}

absl::Status FirstExchange::TryGather(int64_t share, Issue issue) {
  const int64_t all = place_.size * share;
  return Try({"all-gather", share * kFloatBytes, all, 0, all}, issue,
             [share](int64_t i) { return Number(i / share, i); });
}

absl::Status FirstExchange::TryAllToAll(Issue issue) {
  const int size = place_.size;
  return Try({"exchange", kFloatBytes, 2 * size, size, 2 * size}, issue,
             [this, size](int64_t i) { return Number(i - size, place_.rank); });
}

absl::Status FirstExchange::TryNext(Issue issue) {
  const int previous = (place_.rank + place_.size - 1) % place_.size;
  return Try({"message", kFloatBytes, 2, 1, 2}, issue,
             [previous](int64_t) { return Number(previous, 0); });
}

absl::Status FirstExchange::Agreed(Communicator& host) const {
  const absl::Status agreed = Agree(host, verdict_);
  if (!absl::IsFailedPrecondition(agreed)) return agreed;
  return absl::FailedPreconditionError(absl::StrCat(agreed.message(), kBrokenPeerAccess));
}

}  // namespace lockstep::cuda
