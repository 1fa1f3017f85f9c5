#include "parallel/cuda/peer_collectives.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace lockstep::cuda {
namespace {

absl::Status CheckWanted(const Communicator& host) {
  const char* disabled = std::getenv("NCCL_P2P_DISABLE");
  if (disabled != nullptr && std::string_view(disabled) == "1") {
    return absl::UnavailableError("NCCL_P2P_DISABLE is 1");
  }
  if (host.size() > kMaxPeerRanks) {
    return absl::UnavailableError(
        absl::StrFormat("%d ranks, at most %d add up by themselves", host.size(), kMaxPeerRanks));
  }
  return absl::OkStatus();
}

// Of the sums that are tried: whole numbers, exact in every order.
float Term(int rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 1021)); }

}  // namespace

absl::StatusOr<std::unique_ptr<PeerCollectives>> PeerCollectives::Create(
    Communicator& host, const KernelStream& stream, const PeerCollectivesOptions& options) {
  RETURN_IF_ERROR(Agree(host, CheckWanted(host)));
  std::unique_ptr<PeerCollectives> made(new PeerCollectives(stream));
  RETURN_IF_ERROR(made->Start(host, options.machine));
  RETURN_IF_ERROR(Agree(host, made->Check(options.check_patience)));
  return made;
}

PeerCollectives::~PeerCollectives() {
  cudaStreamSynchronize(stream_);  // kernels read what goes now
  if (aborted_ != nullptr) cudaFreeHost(aborted_);
}

absl::Status PeerCollectives::Start(Communicator& host, const std::string& machine) {
  ASSIGN_OR_RETURN(memory_, PeerMemory::Exchange(host, sizeof(Memory), stream_, machine));
  one_shot_.rank = two_shot_.rank = host.rank();
  one_shot_.size = two_shot_.size = host.size();
  for (int rank = 0; rank < host.size(); ++rank) {
    auto* const memory = static_cast<Memory*>(memory_->of(rank));
    one_shot_.memory[rank] = &memory->one_shot;
    two_shot_.memory[rank] = &memory->two_shot;
  }
  void* word = nullptr;
  const absl::Status allocated = CudaStatus(
      cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocMapped | cudaHostAllocPortable),
      "a word that kernels read");
  aborted_ = static_cast<uint32_t*>(word);  // null: not allocated
  RETURN_IF_ERROR(Agree(host, allocated));
  *aborted_ = 0;
  CudaCheck(cudaHostGetDevicePointer(&word, aborted_, 0), "a word that kernels read");
  one_shot_.aborted = two_shot_.aborted = static_cast<const uint32_t*>(word);
  return absl::OkStatus();
}

absl::Status PeerCollectives::LaunchSum(float* data, int64_t count) {
  return LaunchSumBy(/*is_two_shot=*/count > kOneShotFloats, data, count);
}

absl::Status PeerCollectives::LaunchSumBy(bool is_two_shot, float* data, int64_t count) {
  return CudaStatus(is_two_shot ? LaunchTwoShotSum(two_shot_, data, count, stream_)
                                : LaunchOneShotSum(one_shot_, data, count, stream_),
                    "adding up over ranks");
}

absl::Status PeerCollectives::LaunchGather(const void* mine, int64_t bytes, void* all) {
  const GatheredRows rows = {static_cast<const std::byte*>(mine), static_cast<std::byte*>(all),
                             bytes};
  return CudaStatus(LaunchOneShotGather(one_shot_, rows, stream_), "gathering over ranks");
}

void PeerCollectives::Abort() { std::atomic_ref(*aborted_).store(1, std::memory_order_release); }

// Each kernel twice, to use both slots.
absl::Status PeerCollectives::Check(std::chrono::milliseconds patience) {
  constexpr int64_t kTwoShotFloats = 4001;
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, kOneShotFloats * sizeof(float)), "trying a sum"));
  auto* const data = static_cast<float*>(memory);
  absl::Status status;
  for (int round = 0; round < 2; ++round) {
    if (status.ok()) status = CheckSum(/*is_two_shot=*/false, data, kOneShotFloats, patience);
    if (status.ok()) status = CheckSum(/*is_two_shot=*/true, data, kTwoShotFloats, patience);
  }
  cudaFree(memory);
  return status;
}

absl::Status PeerCollectives::CheckSum(bool is_two_shot, float* data, int64_t count,
                                       std::chrono::milliseconds patience) {
  std::vector<float> numbers(static_cast<size_t>(count));
  const size_t bytes = numbers.size() * sizeof(float);
  for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = Term(one_shot_.rank, i);
  RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(data, numbers.data(), bytes, cudaMemcpyHostToDevice, stream_),
                 "trying a sum"));
  RETURN_IF_ERROR(LaunchSumBy(is_two_shot, data, count));
  RETURN_IF_ERROR(Await(patience));
  RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(numbers.data(), data, bytes, cudaMemcpyDeviceToHost, stream_),
                 "trying a sum"));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "trying a sum"));
  const int weight = one_shot_.size * (one_shot_.size + 1) / 2;  // of all terms
  for (int64_t i = 0; i < count; ++i) {
    const float sum = numbers[static_cast<size_t>(i)];
    if (sum == static_cast<float>(weight) * Term(0, i)) continue;
    return absl::UnavailableError(absl::StrFormat(
        "a sum over peer memory came out as %g instead of %g", sum, weight * Term(0, i)));
  }
  return absl::OkStatus();
}

absl::Status PeerCollectives::Await(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  cudaError_t reached = cudaStreamQuery(stream_);
  while (reached == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) {
      Abort();
      cudaStreamSynchronize(stream_);
      return absl::UnavailableError(
          absl::StrFormat("a sum over peer memory did not end within %d ms", patience.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    reached = cudaStreamQuery(stream_);
  }
  return CudaStatus(reached, "trying a sum");
}

}  // namespace lockstep::cuda
