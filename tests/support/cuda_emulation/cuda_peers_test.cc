// What the emulated CUDA does for devices that work together: kernels that wait for others, and
// memory of one process in another.
#include <cuda_runtime.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <device_instructions.cuh>
#include <thread>

#include "kernels/cuda/device.cuh"
#include "tests/support/cuda_emulation/emulation.h"

namespace lockstep::cuda {
namespace {

using cuda_emulation::TakeFailure;
using ::testing::HasSubstr;

// ---- kernels that wait for each other ----

constexpr int kThreads = 64;
// runtime/language.h tells why.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeepsStaticShared = false;
#else
constexpr bool kKeepsStaticShared = true;
#endif

// Thread 0 of each block tells the other's and waits for it, with something in shared memory.
__global__ void Meet(uint32_t* mine, uint32_t* theirs, int* out) {
  __shared__ int kept[kThreads];
  kept[threadIdx.x] = static_cast<int>(100 * blockIdx.x + threadIdx.x);
  DynamicShared<int>()[threadIdx.x] = kept[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    StoreReleaseSystem(theirs + blockIdx.x, 1);
    while (LoadAcquireSystem(mine + blockIdx.x) == 0) SpinPause();
  }
  __syncthreads();
  const unsigned other = kThreads - 1 - threadIdx.x;
  const int first = kKeepsStaticShared ? kept[other] : DynamicShared<int>()[other];
  out[blockIdx.x * kThreads + threadIdx.x] = first + DynamicShared<int>()[other];
}

class CudaPeers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t& stream : streams_) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    }
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(cudaMalloc(&flags_[rank], kBlocks * sizeof(uint32_t)), cudaSuccess);
      ASSERT_EQ(cudaMemset(flags_[rank], 0, kBlocks * sizeof(uint32_t)), cudaSuccess);
      ASSERT_EQ(cudaMalloc(&out_[rank], kBlocks * kThreads * sizeof(int)), cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(TakeFailure(), "");
    for (int rank = 0; rank < 2; ++rank) {
      cudaFree(flags_[rank]);
      cudaFree(out_[rank]);
      EXPECT_EQ(cudaStreamDestroy(streams_[rank]), cudaSuccess);
    }
    cuda_emulation::SetThreadOrder(0);
    cuda_emulation::SetPatience(30);
    cuda_emulation::SetDevice({});
  }
  cudaError_t Launch(int rank) {
    return cuda::Launch(Meet, kBlocks, kThreads, kThreads * sizeof(int), streams_[rank],
                        flags_[rank], flags_[1 - rank], out_[rank]);
  }
  void ExpectOut(int rank) {
    std::vector<int> out(kBlocks * kThreads);
    EXPECT_EQ(cudaMemcpy(out.data(), out_[rank], out.size() * sizeof(int), cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (int i = 0; i < kBlocks * kThreads; ++i) {
      EXPECT_EQ(out[i], 2 * (100 * (i / kThreads) + kThreads - 1 - i % kThreads));
    }
  }

  static constexpr int kBlocks = 3;
  cudaStream_t streams_[2];
  uint32_t* flags_[2];
  int* out_[2];
};

TEST_F(CudaPeers, KernelsOfTwoStreamsMeet) {
  for (const uint64_t order : {0, 1, 2, 3}) {
    cuda_emulation::SetThreadOrder(order);
    for (uint32_t* flags : flags_) {
      ASSERT_EQ(cudaMemset(flags, 0, kBlocks * sizeof(uint32_t)), cudaSuccess);
    }
    ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    ASSERT_EQ(Launch(0), cudaSuccess);
    ASSERT_EQ(Launch(1), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(streams_[1]), cudaSuccess);
    ExpectOut(0);
    ExpectOut(1);
  }
}

TEST_F(CudaPeers, AKernelIsUnderWayUntilTheOtherCame) {
  ASSERT_EQ(Launch(0), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaStreamQuery(streams_[0]), cudaErrorNotReady);
  ASSERT_EQ(Launch(1), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  ExpectOut(0);
}

TEST_F(CudaPeers, AWaitForAKernelThatNeverComesIsAFailure) {
  cuda_emulation::SetPatience(0.05);
  ASSERT_EQ(Launch(0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorLaunchFailure);
  EXPECT_THAT(TakeFailure(), HasSubstr("no work advanced for 0.05 s"));
}

// 32 threads of the multiprocessor are left when each block has 1,008.
__global__ void WaitForLast(uint32_t* flag) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 2) StoreReleaseSystem(flag, 1);
  while (LoadAcquireSystem(flag) == 0) SpinPause();
}

TEST_F(CudaPeers, BlocksWithoutRoomDoNotBegin) {
  cuda_emulation::SetPatience(0.05);
  cuda_emulation::SetDevice({.num_multiprocessors = 2});
  EXPECT_EQ(cuda::Launch(WaitForLast, 3, 1008, 0, streams_[0], flags_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  ASSERT_EQ(cudaMemset(flags_[0], 0, sizeof(uint32_t)), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  cuda_emulation::SetDevice({.num_multiprocessors = 1});
  EXPECT_EQ(cuda::Launch(WaitForLast, 3, 1008, 0, streams_[0], flags_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorLaunchFailure);
  EXPECT_THAT(TakeFailure(), HasSubstr("no work advanced"));
}

__global__ void Vote(int chosen, int* out) {
  out[threadIdx.x] = __syncthreads_or(static_cast<int>(threadIdx.x) == chosen);
}

TEST_F(CudaPeers, ABarrierTellsWhetherAnyThreadSaidSo) {
  for (const int chosen : {-1, 0, kThreads - 1}) {
    EXPECT_EQ(cuda::Launch(Vote, 1, kThreads, 0, streams_[0], chosen, out_[0]), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
    std::vector<int> out(kThreads);
    EXPECT_EQ(cudaMemcpy(out.data(), out_[0], sizeof(int) * kThreads, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_THAT(out, ::testing::Each(chosen >= 0 ? 1 : 0));
  }
}

// ---- memory of another process ----

constexpr size_t kBytes = size_t{2} << 20;

// What two processes share beside the device: written by one, awaited by the other.
struct Notes {
  cudaIpcMemHandle_t handle;
  std::atomic<int> stage;
  void Await(int wanted) const {
    while (stage < wanted) std::this_thread::yield();
  }
};

// A process without CUDA's threads becomes two that use it. True when both find all as it should
// be.
bool InTwoProcesses(const std::function<void(Notes&)>& owner,
                    const std::function<void(Notes&)>& other) {
  void* shared =
      mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* notes = new (shared) Notes;
  std::fflush(nullptr);  // or the children say it again
  std::vector<pid_t> children;
  for (const auto* body : {&owner, &other}) {
    const pid_t child = fork();
    if (child == 0) {
      (*body)(*notes);
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    good &= waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  munmap(shared, sizeof(Notes));
  return good;
}

char* Export(Notes& notes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
  EXPECT_EQ(cudaIpcGetMemHandle(&notes.handle, memory), cudaSuccess);
  EXPECT_EQ(cudaMemset(memory, 7, kBytes), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  notes.stage = 1;
  return static_cast<char*>(memory);
}

void* Open(const Notes& notes, cudaError_t expected) {
  void* memory = nullptr;
  EXPECT_EQ(cudaIpcOpenMemHandle(&memory, notes.handle, cudaIpcMemLazyEnablePeerAccess), expected);
  return memory;
}

TEST(CudaIpc, BothProcessesReadAndWriteTheMemory) {
  EXPECT_TRUE(InTwoProcesses(
      [](Notes& notes) {
        char* memory = Export(notes);
        notes.Await(2);
        char byte = 0;
        EXPECT_EQ(cudaMemcpy(&byte, memory + kBytes - 1, 1, cudaMemcpyDeviceToHost), cudaSuccess);
        EXPECT_EQ(byte, 9);
        EXPECT_EQ(cudaFree(memory), cudaSuccess);
      },
      [](Notes& notes) {
        notes.Await(1);
        auto* memory = static_cast<char*>(Open(notes, cudaSuccess));
        EXPECT_EQ(Open(notes, cudaSuccess), memory) << "opened twice it is the same";
        char byte = 0;
        EXPECT_EQ(cudaMemcpy(&byte, memory, 1, cudaMemcpyDeviceToHost), cudaSuccess);
        EXPECT_EQ(byte, 7);
        EXPECT_EQ(cudaMemset(memory + kBytes - 1, 9, 1), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
        EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue) << "it is the other's";
        EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaSuccess);
        EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaSuccess);
        EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaErrorInvalidValue);
        notes.stage = 2;
      }));
}

TEST(CudaIpc, WhatWasFreedCannotBeOpened) {
  EXPECT_TRUE(InTwoProcesses(
      [](Notes& notes) {
        EXPECT_EQ(cudaFree(Export(notes)), cudaSuccess);
        void* next = nullptr;
        EXPECT_EQ(cudaMalloc(&next, kBytes), cudaSuccess);
        notes.stage = 2;
        notes.Await(3);
        EXPECT_EQ(cudaFree(next), cudaSuccess);
      },
      [](Notes& notes) {
        notes.Await(2);
        Open(notes, cudaErrorInvalidResourceHandle);
        notes.stage = 3;
      }));
}

TEST(CudaIpc, WhatAnotherProcessHasOpenMustNotBeFreed) {
  EXPECT_TRUE(InTwoProcesses(
      [](Notes& notes) {
        char* memory = Export(notes);
        notes.Await(2);
        EXPECT_EQ(cudaFree(memory), cudaErrorLaunchFailure);
        EXPECT_THAT(TakeFailure(), HasSubstr("cudaFree of 2097152 bytes that another process has"));
        notes.stage = 3;
        notes.Await(4);
        EXPECT_EQ(cudaFree(memory), cudaSuccess);
      },
      [](Notes& notes) {
        notes.Await(1);
        void* memory = Open(notes, cudaSuccess);
        Open(notes, cudaSuccess);
        EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaSuccess);
        notes.stage = 2;
        notes.Await(3);
        EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaSuccess);
        notes.stage = 4;
      }));
}

TEST(CudaIpc, WhoHasEndedHasNothingOpen) {
  EXPECT_TRUE(InTwoProcesses(
      [](Notes& notes) {
        char* memory = Export(notes);
        notes.Await(2);
        cudaError_t freed = cudaErrorLaunchFailure;
        for (int i = 0; i < 1000 && freed != cudaSuccess; ++i) {
          TakeFailure();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          freed = cudaFree(memory);
        }
        EXPECT_EQ(freed, cudaSuccess);
      },
      [](Notes& notes) {
        notes.Await(1);
        Open(notes, cudaSuccess);
        notes.stage = 2;
      }));
}

TEST(CudaIpc, RefusalsAreCudas) {
  EXPECT_TRUE(InTwoProcesses(
      [](Notes& notes) {
        char* memory = Export(notes);
        Open(notes, cudaErrorDeviceUninitialized);  // its own
        EXPECT_EQ(cudaIpcGetMemHandle(&notes.handle, memory + 256), cudaErrorInvalidValue);
        void* small = nullptr;
        EXPECT_EQ(cudaMalloc(&small, 1000), cudaSuccess);
        EXPECT_EQ(cudaIpcGetMemHandle(&notes.handle, small), cudaErrorInvalidValue);
        EXPECT_EQ(cudaFree(small), cudaSuccess);
        notes.stage = 2;
        notes.Await(3);
        EXPECT_EQ(cudaFree(memory), cudaSuccess);
        cuda_emulation::SetDevice({.has_ipc = false});
        EXPECT_EQ(cudaMalloc(&small, kBytes), cudaSuccess);
        EXPECT_EQ(cudaIpcGetMemHandle(&notes.handle, small), cudaErrorNotSupported);
        EXPECT_EQ(cudaFree(small), cudaSuccess);
      },
      [](Notes& notes) {
        notes.Await(2);
        cuda_emulation::SetDevice({.num_devices = 2, .reach_each_other = false});
        EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
        Open(notes, cudaErrorPeerAccessUnsupported);
        int can = 1;
        EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 1, 0), cudaSuccess);
        EXPECT_EQ(can, 0);
        EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessUnsupported);
        cuda_emulation::SetDevice({.num_devices = 2});
        EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
        EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
        void* memory = Open(notes, cudaSuccess);
        EXPECT_EQ(cudaIpcCloseMemHandle(memory), cudaSuccess);
        notes.stage = 3;
      }));
}

}  // namespace
}  // namespace lockstep::cuda
