// Messages beside kernels, over the emulation of CUDA and NCCL: ranks are threads with a device
// each, streams do their work as late as they may.
#include "parallel/cuda/pipeline_communicator.h"

#include <cuda_runtime.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/parallel/collective_checks.h"
#include "tests/parallel/cuda/on_device.h"
#include "tests/parallel/cuda/run_devices.h"

namespace lockstep::testing {
namespace {

using cuda::MakePipelineCommunicator;
using cuda::PipelineOptions;
using ::testing::HasSubstr;

constexpr int64_t kSlotBytes = 4096;

// A slot as a backend would give it.
DeviceBuffer Slot(int64_t bytes = kSlotBytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes)), cudaSuccess);
  return DeviceBuffer(std::shared_ptr<void>(memory, [](void* p) { cudaFree(p); }), bytes);
}

absl::StatusOr<std::unique_ptr<Communicator>> MakePipeline(Communicator& host, cudaStream_t stream,
                                                           int64_t slot_bytes = kSlotBytes,
                                                           bool has_way_back = false) {
  PipelineOptions options;
  const bool is_end = host.rank() == 0 || host.rank() == host.size() - 1;
  if (has_way_back && is_end) options.way_back = Slot(slot_bytes);
  if (host.rank() > 0) options.from_previous = Slot(slot_bytes);
  if (host.rank() + 1 < host.size()) options.to_next = Slot(slot_bytes);
  return MakePipelineCommunicator(host, stream, std::move(options));
}

// A number on the device, which kernels of the compute stream change.
class Number {
 public:
  explicit Number(cudaStream_t stream) : on_device_(nullptr, 4, stream), stream_(stream) {}
  void Set(int value) {
    EXPECT_EQ(cudaMemsetAsync(on_device_.as<void>(), value, 4, stream_), cudaSuccess);
  }
  int Get() const {
    uint8_t bytes[4] = {};
    on_device_.ReadTo(bytes);
    return bytes[0];
  }
  void* data() const { return on_device_.as<void>(); }

 private:
  const OnDevice on_device_;
  cudaStream_t stream_;
};

class PipelineCommunicatorTest : public ::testing::TestWithParam<int> {};

// Those longer than a slot in pieces.
TEST_P(PipelineCommunicatorTest, MessagesArriveInOrder) {
  RunDevices(GetParam(), [&](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    FromHost from_host(*group, stream.get());
    for (const int64_t count : kCounts) {
      RETURN_IF_ERROR(CheckMessagesInOrder(from_host, count));
    }
    return group->Health();
  });
}

TEST_P(PipelineCommunicatorTest, CollectivesTakeTheirTurn) {
  RunDevices(GetParam(), [&](int, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    FromHost from_host(*group, stream.get());
    RETURN_IF_ERROR(CheckAllGather(from_host, 1025, /*in_place=*/true));
    std::vector<float> ones(100, 1.0f);
    RETURN_IF_ERROR(from_host.AllReduceSum(ones.data(), 100));
    EXPECT_THAT(ones, ::testing::Each(static_cast<float>(group->size())));
    return group->Barrier();
  });
}

// Many steps of all stages, no host waiting for another: every number is that of its step.
TEST_P(PipelineCommunicatorTest, StepsFollowEachOtherWithoutTheHost) {
  constexpr int kNumSteps = 20;
  RunDevices(GetParam(), [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    Number number(stream.get());
    const OnDevice seen(nullptr, 4 * kNumSteps, stream.get());
    for (int step = 0; step < kNumSteps; ++step) {
      if (rank > 0) {
        RETURN_IF_ERROR(group->Recv(rank - 1, number.data(), 4));
      } else {
        number.Set(step + 1);
      }
      EXPECT_EQ(cudaMemcpyAsync(seen.as<char>() + 4 * step, number.data(), 4,
                                cudaMemcpyDeviceToDevice, stream.get()),
                cudaSuccess);
      if (rank + 1 < group->size()) RETURN_IF_ERROR(group->Send(rank + 1, number.data(), 4));
      number.Set(99);  // the next step's kernels overwrite it
    }
    std::vector<int32_t> numbers(kNumSteps);
    seen.ReadTo(numbers.data());
    for (int step = 0; step < kNumSteps; ++step) EXPECT_EQ(numbers[step], (step + 1) * 0x01010101);
    RETURN_IF_ERROR(group->Barrier());
    return group->Health();
  });
}

// A token's way round: what the last rank makes of a step's number is the input of a later step.
// Every step is issued before the first is done.
TEST_P(PipelineCommunicatorTest, WhatComesBackIsAwaitedByTheStepThatNeedsIt) {
  constexpr int kNumSteps = 12;
  RunDevices(GetParam(), [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                     MakePipeline(host, stream.get(), kSlotBytes, /*has_way_back=*/true));
    const int last = group->size() - 1;
    Number number(stream.get());
    const OnDevice back(nullptr, 4 * kNumSteps, stream.get());
    const auto copy = [&](void* to, const void* from) {
      return cudaMemcpyAsync(to, from, 4, cudaMemcpyDeviceToDevice, stream.get());
    };
    for (int step = 0; step < kNumSteps; ++step) {
      if (rank == 0) {
        number.Set(step + 1);
        if (step >= group->size()) {
          RETURN_IF_ERROR(group->FinishRecv(last));
          EXPECT_EQ(copy(number.data(), back.as<char>() + 4 * (step - group->size())), cudaSuccess);
        }
      } else {
        RETURN_IF_ERROR(group->Recv(rank - 1, number.data(), 4));
      }
      if (rank < last) RETURN_IF_ERROR(group->Send(rank + 1, number.data(), 4));
      if (rank == 0) RETURN_IF_ERROR(group->StartRecv(last, back.as<char>() + 4 * step, 4));
      if (rank == last) RETURN_IF_ERROR(group->Send(0, number.data(), 4));
      number.Set(99);
    }
    if (rank == 0) {
      for (int i = 0; i < std::min(group->size(), kNumSteps); ++i) {
        RETURN_IF_ERROR(group->FinishRecv(last));
      }
      std::vector<int32_t> numbers(kNumSteps);
      back.ReadTo(numbers.data());
      for (int step = 0; step < kNumSteps; ++step) {
        EXPECT_EQ(numbers[step], (step % group->size() + 1) * 0x01010101);
      }
    }
    RETURN_IF_ERROR(group->Barrier());
    return group->Health();
  });
}

// As start-up measures links: there and back, with and without a way of its own.
TEST_P(PipelineCommunicatorTest, NeighboursAnswer) {
  for (const bool has_way_back : {false, true}) {
    RunDevices(GetParam(), [&](int rank, Communicator& host) -> absl::Status {
      const Stream stream;
      ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                       MakePipeline(host, stream.get(), kSlotBytes, has_way_back));
      Number number(stream.get());
      if (rank > 0) {
        RETURN_IF_ERROR(group->Recv(rank - 1, number.data(), 4));
        RETURN_IF_ERROR(group->Send(rank - 1, number.data(), 4));
      }
      if (rank + 1 < group->size()) {
        number.Set(rank + 5);
        RETURN_IF_ERROR(group->Send(rank + 1, number.data(), 4));
        number.Set(0);
        RETURN_IF_ERROR(group->Recv(rank + 1, number.data(), 4));
        EXPECT_EQ(number.Get(), rank + 5);
      }
      return group->Barrier();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PipelineCommunicatorTest, ::testing::Values(2, 3, 4, 5));

// What overlap is: kernels issued after a Send end although nobody has come to receive.
TEST(PipelineOverlapTest, KernelsGoOnWhileTheReceiverHasNotCome) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    Number number(stream.get());
    if (rank == 0) {
      number.Set(1);
      RETURN_IF_ERROR(group->Send(1, number.data(), 4));
      number.Set(2);
      EXPECT_EQ(number.Get(), 2) << "the compute stream has come to its end";
      RETURN_IF_ERROR(host.Barrier());
      RETURN_IF_ERROR(group->Send(1, number.data(), 4));
      number.Set(3);
    } else {
      RETURN_IF_ERROR(host.Barrier());  // now the buffer has another number
      for (const int sent : {1, 2}) {
        RETURN_IF_ERROR(group->Recv(0, number.data(), 4));
        EXPECT_EQ(number.Get(), sent);
      }
    }
    return group->Barrier();
  });
}

// A slot is filled again only when what lay in it has left, or was taken out.
TEST(PipelineOverlapTest, NoSlotIsOverwrittenBeforeItsMessageHasBeenTaken) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    constexpr int kNumMessages = 4;
    std::vector<std::unique_ptr<Number>> numbers;
    for (int i = 0; i < kNumMessages; ++i) {
      numbers.push_back(std::make_unique<Number>(stream.get()));
    }
    if (rank == 0) {
      for (int i = 0; i < kNumMessages; ++i) {
        numbers[i]->Set(i + 1);
        RETURN_IF_ERROR(group->Send(1, numbers[i]->data(), 4));
      }
      // As far as the stream can go by itself.
      for (int i = 0; i < 100; ++i) cudaStreamQuery(stream.get());
      RETURN_IF_ERROR(host.Barrier());
    } else {
      RETURN_IF_ERROR(host.Barrier());
      for (const auto& number : numbers) {
        RETURN_IF_ERROR(group->Recv(0, number->data(), 4));
      }
      for (int i = 0; i < kNumMessages; ++i) EXPECT_EQ(numbers[i]->Get(), i + 1);
    }
    return group->Barrier();
  });
}

// The receive of the next step is done while a step's kernels wait for something else.
TEST(PipelineOverlapTest, MessagesArriveWhileAStepIsComputed) {
  RunDevices(3, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    Number number(stream.get());
    if (rank == 0) {
      // Its third message leaves only when rank 1 has received the second.
      for (int i = 1; i <= 3; ++i) {
        number.Set(i);
        RETURN_IF_ERROR(group->Send(1, number.data(), 4));
      }
      EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      RETURN_IF_ERROR(host.Barrier());
    } else if (rank == 1) {
      // The first step sends on; rank 2 does not come. The second step's message, and with it the
      // third into rank 0's slot, still arrives.
      for (int i = 1; i <= 2; ++i) {
        RETURN_IF_ERROR(group->Recv(0, number.data(), 4));
        RETURN_IF_ERROR(group->Send(2, number.data(), 4));
      }
      RETURN_IF_ERROR(host.Barrier());
      RETURN_IF_ERROR(group->Recv(0, number.data(), 4));
      EXPECT_EQ(number.Get(), 3);
    } else {
      RETURN_IF_ERROR(host.Barrier());
      for (int i = 1; i <= 2; ++i) {
        RETURN_IF_ERROR(group->Recv(1, number.data(), 4));
        EXPECT_EQ(number.Get(), i);
      }
    }
    return group->Barrier();
  });
}

TEST(PipelineEndTest, EndsOfALinkMustAgree) {
  RunDevices(3, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    const auto group = MakePipeline(host, stream.get(), rank == 2 ? 2 * kSlotBytes : kSlotBytes);
    EXPECT_EQ(group.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(group.status().message(),
                HasSubstr("rank 1 sends messages of 4096 bytes, rank 2 receives them in 8192"));
    return absl::OkStatus();
  });
}

TEST(PipelineEndTest, EndsOfTheWayBackMustAgree) {
  RunDevices(2, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    PipelineOptions options;
    if (rank == 0) {
      options.to_next = Slot();
      options.way_back = Slot(64);
    } else {
      options.from_previous = Slot();
    }
    const auto group = MakePipelineCommunicator(host, stream.get(), std::move(options));
    EXPECT_EQ(group.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(group.status().message(),
                HasSubstr("back are of 0 bytes on the last rank, of 64 on the first"));
    return absl::OkStatus();
  });
}

TEST(PipelineEndTest, OnlyNeighboursAreLinked) {
  RunDevices(3, [&](int rank, Communicator& host) -> absl::Status {
    const Stream stream;
    ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group, MakePipeline(host, stream.get()));
    const Number number(stream.get());
    for (const int peer : {(rank + 2) % 4, rank}) {
      EXPECT_EQ(group->Send(peer, number.data(), 4).code(), absl::StatusCode::kInternal);
      EXPECT_EQ(group->Recv(peer, number.data(), 4).code(), absl::StatusCode::kInternal);
    }
    EXPECT_EQ(group->StartRecv(2, number.data(), 4).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(group->FinishRecv(2).code(), absl::StatusCode::kInternal);
    return group->Barrier();
  });
}

// Waits end on both sides of a rank that goes, whichever its link's communicator is.
TEST(PipelineEndTest, ARankThatGoesEndsItsNeighboursWaits) {
  for (const int leaver : {0, 1, 2}) {
    RunDevices(3, [&](int rank, Communicator& host) -> absl::Status {
      const Stream stream;
      ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> group,
                       MakePipeline(host, stream.get(), kSlotBytes, /*has_way_back=*/true));
      RETURN_IF_ERROR(host.Barrier());
      if (rank == leaver) {
        group->Abort();
        EXPECT_EQ(group->Health().code(), absl::StatusCode::kUnavailable);
        return absl::OkStatus();
      }
      Number number(stream.get());
      const Number back(stream.get());
      absl::Status status;
      for (int step = 0; step < 3 && status.ok(); ++step) {
        if (rank > 0) status = group->Recv(rank - 1, number.data(), 4);
        if (status.ok() && rank == 2) status = group->Send(0, number.data(), 4);
        if (status.ok() && rank < 2) status = group->Send(rank + 1, number.data(), 4);
        if (status.ok() && rank == 0) status = group->StartRecv(2, back.data(), 4);
        if (status.ok() && rank == 0) status = group->FinishRecv(2);
      }
      EXPECT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      while (group->Health().ok()) {
      }
      EXPECT_EQ(group->Health().code(), absl::StatusCode::kUnavailable);
      return absl::OkStatus();
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
