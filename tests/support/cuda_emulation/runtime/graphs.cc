// Capture of streams, and graphs.
#include <deque>
#include <memory>

#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/runtime_api.h"

struct CUgraph_st {
  std::vector<lockstep::cuda_emulation::MakeWork> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<lockstep::cuda_emulation::MakeWork>> nodes;
  // Device::graph_bytes: half of them when it is made, half when it comes to its device.
  int device = 0;
  void* memory[2] = {};
};

namespace lockstep::cuda_emulation {

namespace {

cudaError_t AllocateHalf(int device, void** memory) {
  const auto& pretended = TheEngine().device;
  return TheDeviceMemory().Allocate(static_cast<size_t>(pretended.graph_bytes / 2),
                                    DeviceMemory::Kind::kDevice, device, pretended.memory_bytes,
                                    memory);
}

cudaError_t Upload(CUgraphExec_st& exec) {
  return exec.memory[1] != nullptr ? cudaSuccess : AllocateHalf(exec.device, &exec.memory[1]);
}

// Every stream that joined was waited for, directly or not, by the stream the capture began in.
bool AllJoined(const Capture& capture) {
  const CapturedPast& past = capture.origin->past;
  for (const auto& [stream, num_issued] : capture.num_issued) {
    const auto known = past.find(stream);
    if (known == past.end() || known->second < num_issued) return false;
  }
  return true;
}

void Leave(const std::shared_ptr<Capture>& capture) {
  TheEngine().ForEachStream([&](CUstream_st& stream) {
    if (stream.capture != capture) return;
    stream.capture = nullptr;
    stream.past.clear();
  });
  std::erase(TheEngine().captures(), capture);
  capture->origin = nullptr;
}

cudaError_t EndCapture(CUstream_st& stream, cudaGraph_t* graph) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return cudaErrorInvalidValue;
  if (capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const bool joined = AllJoined(*capture);
  Leave(capture);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return cudaSuccess;
}

// One node after another, each until it is done.
MakeWork Replay(std::shared_ptr<const std::vector<MakeWork>> nodes) {
  return [nodes]() -> Work {
    return [nodes, num_made = size_t{0}, made = std::deque<Work>()]() mutable {
      const auto nth = [&](size_t n) -> const Work* {
        while (made.size() <= n && num_made < nodes->size()) {
          made.push_back((*nodes)[num_made++]());
        }
        return n < made.size() ? &made[n] : nullptr;
      };
      while (nth(0) != nullptr) {
        BeginEarly(made.front(), nth);
        if (!made.front()()) return false;
        made.pop_front();
      }
      return true;
    };
  };
}

}  // namespace

}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (const cudaError_t error = TheEngine().Find(handle, &stream); error != cudaSuccess) {
      return error;
    }
    if (stream->is_default) return cudaErrorStreamCaptureUnsupported;
    if (stream->capture != nullptr) return cudaErrorIllegalState;
    stream->capture = std::make_shared<Capture>();
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->origin = stream.get();
    stream->past.clear();
    TheEngine().captures().push_back(stream->capture);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (graph == nullptr) return cudaErrorInvalidValue;
    *graph = nullptr;
    const cudaError_t error = TheEngine().Find(handle, &stream);
    return error != cudaSuccess ? error : EndCapture(*stream, graph);
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (const cudaError_t error = TheEngine().Find(handle, &stream); error != cudaSuccess) {
      return error;
    }
    *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Call([&](auto&) {
    if (graph == nullptr) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return Call([&](auto&) {
    if (exec == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    if (flags != 0) return cudaErrorNotSupported;
    void* memory = nullptr;
    const cudaError_t error = AllocateHalf(CurrentDevice(), &memory);
    if (error != cudaSuccess) return error;
    *exec = new CUgraphExec_st{std::make_shared<const std::vector<MakeWork>>(graph->nodes),
                               CurrentDevice(),
                               {memory, nullptr}};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  return Call([&](auto&) { return exec == nullptr ? cudaErrorInvalidValue : Upload(*exec); });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (exec == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = TheEngine().Find(handle, &stream); error != cudaSuccess) {
      return error;
    }
    if (const cudaError_t error = Upload(*exec); error != cudaSuccess) return error;
    return TheEngine().Issue(*stream, "a graph", Replay(exec->nodes));
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return Call([&](auto&) {
    if (exec == nullptr) return cudaErrorInvalidValue;
    for (void* half : exec->memory) TheDeviceMemory().Free(half, DeviceMemory::Kind::kDevice);
    delete exec;
    return cudaSuccess;
  });
}
