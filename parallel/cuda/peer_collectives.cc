#include "parallel/cuda/peer_collectives.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

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

constexpr char kTrying[] = "trying the memory of peers";

// Of what is tried: whole numbers, whose sums are exact in every order.
float Term(int64_t rank, int64_t i) { return static_cast<float>((rank + 1) * (i % 1021)); }

}  // namespace

struct PeerCollectives::Trial {
  const char* what;
  int64_t count;
  std::function<float(int64_t)> before;  // of the i-th number
  std::function<float(int64_t)> after;
  std::function<absl::Status(float*)> launch;
};

absl::StatusOr<std::unique_ptr<PeerCollectives>> PeerCollectives::Create(
    Communicator& host, const KernelStream& stream, const PeerCollectivesOptions& options) {
  RETURN_IF_ERROR(Agree(host, CheckWanted(host)));
  std::unique_ptr<PeerCollectives> made(new PeerCollectives(stream));
  absl::Status status = made->Start(host, options.machine);
  if (status.ok()) status = Agree(host, made->Check(options.check_patience));
  if (status.ok()) return made;
  // On all ranks, whose kernels may still be at each other's memory.
  if (absl::IsFailedPrecondition(status)) RETURN_IF_ERROR(made->Leave(host));
  return status;
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

absl::Status PeerCollectives::Leave(Communicator& host) {
  if (memory_ == nullptr) return absl::OkStatus();  // on all ranks
  if (aborted_ != nullptr) Abort();
  return memory_->Leave(host,
                        CudaStatus(cudaStreamSynchronize(stream_), "leaving the memory of peers"));
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

PeerCollectives::Trial PeerCollectives::TrialOfSum(bool is_two_shot, int64_t count) {
  const int weight = one_shot_.size * (one_shot_.size + 1) / 2;  // of all terms
  return {
      "sum", count, [this](int64_t i) { return Term(one_shot_.rank, i); },
      [weight](int64_t i) { return static_cast<float>(weight) * Term(0, i); },
      [this, is_two_shot, count](float* data) { return LaunchSumBy(is_two_shot, data, count); }};
}

// Of rows of which each rank has its own in place.
PeerCollectives::Trial PeerCollectives::TrialOfGathering(int64_t row) {
  const auto gathered = [row](int64_t i) { return Term(i / row, i % row); };
  const int64_t rank = one_shot_.rank;
  return {"gathering", one_shot_.size * row,
          [=](int64_t i) { return i / row == rank ? gathered(i) : -1.0f; }, gathered,
          [=, this](float* data) {
            return LaunchGather(data + rank * row, row * int64_t{sizeof(float)}, data);
          }};
}

// Each kernel twice, to use both slots.
absl::Status PeerCollectives::Check(std::chrono::milliseconds patience) {
  constexpr int64_t kTwoShotFloats = 4001;
  constexpr int64_t kRowFloats = 4100;
  static_assert(kMaxPeerRanks * kRowFloats <= kOneShotFloats);
  void* memory = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, kOneShotFloats * sizeof(float)), kTrying));
  absl::Status status;
  for (const Trial& trial :
       {TrialOfSum(/*is_two_shot=*/false, kOneShotFloats),
        TrialOfSum(/*is_two_shot=*/true, kTwoShotFloats), TrialOfGathering(kRowFloats)}) {
    for (int round = 0; round < 2 && status.ok(); ++round) {
      status = Try(trial, static_cast<float*>(memory), patience);
    }
  }
  cudaFree(memory);
  return status;
}

absl::Status PeerCollectives::Try(const Trial& trial, float* data,
                                  std::chrono::milliseconds patience) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < trial.count; ++i) numbers.push_back(trial.before(i));
  const size_t bytes = numbers.size() * sizeof(float);
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(data, numbers.data(), bytes, cudaMemcpyHostToDevice, stream_), kTrying));
  RETURN_IF_ERROR(trial.launch(data));
  RETURN_IF_ERROR(Await(trial.what, patience));
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(numbers.data(), data, bytes, cudaMemcpyDeviceToHost, stream_), kTrying));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), kTrying));
  for (int64_t i = 0; i < trial.count; ++i) {
    const float number = numbers[static_cast<size_t>(i)];
    if (number == trial.after(i)) continue;
    return absl::UnavailableError(absl::StrFormat(
        "a %s over peer memory came out as %g instead of %g", trial.what, number, trial.after(i)));
  }
  return absl::OkStatus();
}

absl::Status PeerCollectives::Await(const char* what, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  cudaError_t reached = cudaStreamQuery(stream_);
  while (reached == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() > deadline) {
      Abort();
      cudaStreamSynchronize(stream_);
      return absl::UnavailableError(absl::StrFormat(
          "a %s over peer memory did not end within %d ms", what, patience.count()));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    reached = cudaStreamQuery(stream_);
  }
  return CudaStatus(reached, kTrying);
}

}  // namespace lockstep::cuda
