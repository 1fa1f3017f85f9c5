// Streams and events.
#include <chrono>
#include <set>

#include "tests/support/cuda_emulation/runtime/event.h"
#include "tests/support/cuda_emulation/runtime/runtime_api.h"

namespace lockstep::cuda_emulation {

namespace {

double NowMs() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::set<cudaEvent_t>& Events() {
  static auto* events = new std::set<cudaEvent_t>;
  return *events;
}

bool IsEvent(cudaEvent_t event) { return Events().contains(event); }

cudaError_t CreateStream(cudaStream_t* stream, unsigned flags) {
  return Call([&](auto&) {
    if (stream == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = TheEngine().AddStream(CurrentDevice(), (flags & cudaStreamNonBlocking) != 0).get();
    return cudaSuccess;
  });
}

cudaError_t RecordCaptured(CUevent_st& event, CUstream_st& stream) {
  if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  event.stream = nullptr;
  event.capture = stream.capture;
  event.past = stream.past;
  return cudaSuccess;
}

// The stream joins the event's capture, or learns more of it.
cudaError_t WaitCaptured(CUstream_st& stream, const CUevent_st& event) {
  if (event.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (event.capture->origin == nullptr) return cudaErrorInvalidValue;  // a capture that has ended
  if (stream.capture != nullptr && stream.capture != event.capture) {
    stream.capture->invalid = event.capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (stream.is_default) {
    event.capture->invalid = true;
    return cudaErrorStreamCaptureImplicit;
  }
  if (stream.capture == nullptr) stream.past.clear();
  stream.capture = event.capture;
  for (const auto& [other, ticket] : event.past) {
    stream.past[other] = std::max(stream.past[other], ticket);
  }
  return cudaSuccess;
}

}  // namespace

}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return CreateStream(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return CreateStream(stream, flags);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return CreateStream(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (handle == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = TheEngine().Find(handle, &stream); error != cudaSuccess) {
      return error;
    }
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    stream->destroyed = true;  // what is queued in it is still done
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return Call([&](auto& lock) {
    std::shared_ptr<CUstream_st> stream;
    cudaError_t error = TheEngine().Find(handle, &stream);
    if (error == cudaSuccess) error = TheEngine().RefuseWhileCapturing();
    if (error != cudaSuccess) return error;
    if (stream->capture != nullptr) {
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    return TheEngine().Await(lock, *stream, stream->issued);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    cudaError_t error = TheEngine().Find(handle, &stream);
    if (error == cudaSuccess) error = TheEngine().RefuseWhileCapturing();
    if (error != cudaSuccess) return error;
    if (stream->done < stream->issued) {
      TheEngine().AdvanceTowards(*stream);
      return cudaErrorNotReady;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) return cudaErrorNotSupported;
    if (const cudaError_t error = TheEngine().Find(handle, &stream); error != cudaSuccess) {
      return error;
    }
    if (event->capture != nullptr) return WaitCaptured(*stream, *event);
    if (stream->capture != nullptr) {
      stream->capture->invalid = true;
      return cudaErrorStreamCaptureIsolation;
    }
    if (event->stream == nullptr) return cudaSuccess;
    return TheEngine().Issue(*stream, "a wait for an event", Once([] {}),
                             {{event->stream, event->ticket}});
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* user_data) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    const cudaError_t error = TheEngine().Find(handle, &stream);
    if (error != cudaSuccess) return error;
    return TheEngine().Issue(*stream, "a call of the host", Once([=] { function(user_data); }));
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Call([&](auto&) {
    if (event == nullptr || (flags & ~3u) != 0) return cudaErrorInvalidValue;
    *event = new CUevent_st;
    (*event)->flags = flags;
    Events().insert(*event);
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call([&](auto&) {
    if (Events().erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return Call([&](auto&) {
    std::shared_ptr<CUstream_st> stream;
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = TheEngine().Find(handle, &stream); error != cudaSuccess) {
      return error;
    }
    if (stream->capture != nullptr) return RecordCaptured(*event, *stream);
    event->capture = nullptr;
    auto recorded_ms = std::make_shared<double>(0);
    event->recorded_ms = recorded_ms;
    event->stream = stream;
    event->ticket = stream->issued + 1;
    const auto record = [recorded_ms] { *recorded_ms = NowMs(); };
    return TheEngine().Issue(*stream, "an event", Once(record, Work::Kind::kEvent));
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call([&](auto& lock) {
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return cudaErrorCapturedEvent;
    if (const cudaError_t error = TheEngine().RefuseWhileCapturing(); error != cudaSuccess) {
      return error;
    }
    if (event->stream == nullptr) return cudaSuccess;
    const std::shared_ptr<CUstream_st> stream = event->stream;
    return TheEngine().Await(lock, *stream, event->ticket);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call([&](auto&) {
    if (!IsEvent(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return cudaErrorCapturedEvent;
    if (const cudaError_t error = TheEngine().RefuseWhileCapturing(); error != cudaSuccess) {
      return error;
    }
    if (event->stream == nullptr || event->stream->done >= event->ticket) return cudaSuccess;
    TheEngine().AdvanceTowards(*event->stream);
    return cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return Call([&](auto&) {
    for (const cudaEvent_t event : {begin, end}) {
      if (!IsEvent(event) || event->stream == nullptr ||
          (event->flags & cudaEventDisableTiming) != 0) {
        return cudaErrorInvalidResourceHandle;
      }
      if (event->stream->done < event->ticket) return cudaErrorNotReady;
    }
    *ms = static_cast<float>(*end->recorded_ms - *begin->recorded_ms);
    return cudaSuccess;
  });
}
