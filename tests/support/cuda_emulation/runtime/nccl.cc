#include <nccl.h>

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/engine.h"
#include "tests/support/cuda_emulation/runtime/nccl_mesh.h"

struct ncclComm {
  std::shared_ptr<lockstep::cuda_emulation::NcclMesh> mesh;
  int device = 0;
  void* memory = nullptr;  // Device::communicator_bytes
  bool blocking = true;
  ncclResult_t state = ncclSuccess;
  std::string last_error;
  std::function<ncclResult_t()> pending;     // launched when it is asked how the call went
  std::shared_ptr<CUstream_st> last_stream;  // of what was launched last, and its place there
  int64_t last_ticket = 0;
  // Held by all work of this communicator, queued or in graphs; tells it of an abort.
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
};

namespace lockstep::cuda_emulation {
namespace {

struct Batch {
  ncclComm* comm;
  cudaStream_t stream;
  std::vector<Operation> operations;
};

thread_local int group_depth = 0;
thread_local std::vector<Batch> grouped;

// All operations of a group end together; its collectives are done one after another.
Work MakeBatchWork(const std::shared_ptr<NcclMesh>& mesh, const std::vector<Operation>& operations,
                   std::shared_ptr<bool> aborted) {
  std::vector<NcclMesh::Part> parts;
  for (const Operation& operation : operations) parts.push_back({operation});
  return [mesh, parts, aborted]() mutable {
    bool all_done = true;
    bool has_collective = false;  // under way
    for (NcclMesh::Part& part : parts) {
      if (*aborted || part.done) continue;
      if (part.operation.collective() && std::exchange(has_collective, true)) {
        all_done = false;
        continue;
      }
      const bool begins = !part.begun;
      if (const std::string bad = mesh->Advance(part); !bad.empty()) {
        TheEngine().Fail(bad);
        return true;
      }
      if (begins || part.done) TheEngine().NotifyChange();  // peers may go on
      all_done &= part.done;
    }
    return all_done;
  };
}

ncclResult_t LaunchBatch(const Batch& batch) {
  std::shared_ptr<CUstream_st> stream;
  if (TheEngine().Find(batch.stream, &stream) != cudaSuccess) return ncclUnhandledCudaError;
  ncclComm& comm = *batch.comm;
  const MakeWork make = [mesh = comm.mesh, aborted = comm.aborted, operations = batch.operations] {
    return MakeBatchWork(mesh, operations, aborted);
  };
  std::string name = absl::StrCat("NCCL of rank ", comm.mesh->rank(), ":");
  for (const Operation& operation : batch.operations) {
    absl::StrAppend(&name, " ", operation.Describe());
  }
  std::vector<CUstream_st::After> after;
  if (comm.last_stream != nullptr && comm.last_stream != stream) {
    after.push_back({comm.last_stream, comm.last_ticket});
  }
  if (TheEngine().Issue(*stream, std::move(name), make, std::move(after)) != cudaSuccess) {
    return ncclUnhandledCudaError;
  }
  if (stream->capture == nullptr) {
    comm.last_ticket = stream->issued;
    comm.last_stream = std::move(stream);
  }
  return ncclSuccess;
}

ncclResult_t Refuse(ncclComm* comm, ncclResult_t result, const std::string& why) {
  std::fprintf(stderr, "CUDA emulation: NCCL: %s\n", why.c_str());
  if (comm != nullptr) comm->last_error = why;
  return result;
}

ncclResult_t CheckOperation(ncclComm* comm, const Operation& operation) {
  if (comm == nullptr || *comm->aborted) return ncclInvalidArgument;
  if (comm->state == ncclInProgress) {
    return Refuse(comm, ncclInvalidUsage, "a call before the one before it was launched");
  }
  if (operation.peer >= comm->mesh->num_ranks() || operation.peer == comm->mesh->rank()) {
    return Refuse(comm, ncclInvalidArgument, absl::StrCat("no peer ", operation.peer));
  }
  const size_t bytes = operation.bytes();
  const size_t bytes_of_all = bytes * comm->mesh->num_ranks();
  const bool gathers = operation.kind == Operation::Kind::kAllGather;
  const bool scatters = operation.kind == Operation::Kind::kReduceScatter;
  const size_t from_bytes = scatters ? bytes_of_all : bytes;
  const size_t to_bytes = gathers ? bytes_of_all : bytes;
  const bool reads = operation.kind != Operation::Kind::kRecv;
  const bool writes = operation.kind != Operation::Kind::kSend;
  if ((bytes > 0 && reads && !TheDeviceMemory().Holds(operation.from, from_bytes)) ||
      (bytes > 0 && writes && !TheDeviceMemory().Holds(operation.to, to_bytes))) {
    return Refuse(comm, ncclInvalidArgument, "a buffer not within the device's memory");
  }
  return ncclSuccess;
}

cudaError_t AllocateFor(ncclComm& comm) {
  const Device& device = TheEngine().device;
  return TheDeviceMemory().Allocate(static_cast<size_t>(device.communicator_bytes),
                                    DeviceMemory::Kind::kDevice, comm.device, device.memory_bytes,
                                    &comm.memory);
}

void Delete(ncclComm* comm) {
  TheDeviceMemory().Free(comm->memory, DeviceMemory::Kind::kDevice);
  delete comm;
}

// The real one chooses the caller's device again after its work (NCCL 2.28.9, group.cc,
// ncclGroupEndInternal), and choosing a device makes a context there (CUDA runtime API, since 12.0:
// cudaSetDevice), of some hundred MiB: on device 0, for a thread that never chose one.
void CheckCallersDevice(const ncclComm& comm, const char* call) {
  if (comm.device == 0 || HasChosenDevice() || TheEngine().error() != cudaSuccess) return;
  TheEngine().Fail(absl::StrCat("NCCL: ", call, " of a communicator of device ", comm.device,
                                " on a thread that chose no device makes a context on device 0"));
}

ncclResult_t LaunchAll(const std::vector<Batch>& batches) {
  for (const Batch& batch : batches) {
    const ncclResult_t result = LaunchBatch(batch);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

// At once, or when it is asked how it went.
ncclResult_t Start(std::vector<Batch> batches) {
  if (batches.empty()) return ncclSuccess;
  ncclComm* comm = batches.front().comm;
  if (comm->blocking) return LaunchAll(batches);
  for (const Batch& batch : batches) batch.comm->state = ncclInProgress;
  comm->pending = [batches = std::move(batches)] {
    const ncclResult_t result = LaunchAll(batches);
    for (const Batch& batch : batches) batch.comm->state = result;
    return result;
  };
  return ncclInProgress;
}

ncclResult_t Enqueue(ncclComm* comm, cudaStream_t stream, const Operation& operation) {
  const std::lock_guard lock(TheEngine().mutex());
  if (TheEngine().error() != cudaSuccess) return ncclUnhandledCudaError;
  const ncclResult_t result = CheckOperation(comm, operation);
  if (result != ncclSuccess) return result;
  if (group_depth == 0) return Start({{comm, stream, {operation}}});
  for (Batch& batch : grouped) {
    if (batch.comm != comm || batch.stream != stream) continue;
    batch.operations.push_back(operation);
    return ncclSuccess;
  }
  grouped.push_back({comm, stream, {operation}});
  return ncclSuccess;
}

}  // namespace
}  // namespace lockstep::cuda_emulation

using namespace lockstep::cuda_emulation;

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}
const char* ncclGetLastError(ncclComm_t comm) {
  return comm == nullptr ? "" : comm->last_error.c_str();
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(TheEngine().mutex());
  static int number = 0;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "lockstep-nccl-%d-%d", getpid(), ++number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  std::unique_lock lock(TheEngine().mutex());
  if (rank < 0 || rank >= num_ranks || config->magic != 0xcafebeef ||
      std::strncmp(id.internal, "lockstep-nccl-", 14) != 0) {
    return Refuse(nullptr, ncclInvalidArgument, "a communicator of wrong arguments");
  }
  TheEngine().KeepGoing();
  *comm = new ncclComm;
  (*comm)->device = CurrentDevice();
  if (AllocateFor(**comm) != cudaSuccess) {
    delete std::exchange(*comm, nullptr);
    return Refuse(nullptr, ncclUnhandledCudaError, "no device memory for a communicator");
  }
  (*comm)->mesh = std::make_shared<NcclMesh>(id.internal, num_ranks, rank);
  (*comm)->blocking = config->blocking != 0;
  const auto joined = [mesh = (*comm)->mesh] { return mesh->Connect(); };
  if ((*comm)->blocking) {
    const cudaError_t error =
        TheEngine().AwaitCondition(lock, "the ranks of a communicator", joined);
    return error == cudaSuccess ? ncclSuccess : ncclSystemError;
  }
  (*comm)->state = ncclInProgress;
  (*comm)->pending = [joined] { return joined() ? ncclSuccess : ncclInProgress; };
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(TheEngine().mutex());
  if (comm == nullptr || error == nullptr) return ncclInvalidArgument;
  if (comm->pending) {
    const ncclResult_t result = comm->pending();
    if (result != ncclInProgress) {
      comm->pending = nullptr;
      comm->state = result;
    }
  }
  comm->mesh->Listen();
  *error = comm->mesh->broken() ? ncclRemoteError : comm->state;
  return ncclSuccess;
}

// Waits, as the real one, for what the communicator has under way.
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  std::unique_lock lock(TheEngine().mutex());
  if (comm == nullptr || *comm->aborted) return ncclInvalidArgument;
  if (comm->state == ncclInProgress) {
    return Refuse(comm, ncclInvalidUsage, "finalized before the last call was launched");
  }
  if (comm->blocking) {
    const cudaError_t error = TheEngine().AwaitDevice(lock, comm->device);
    comm->mesh->SayGoodbye();
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  }
  comm->state = ncclInProgress;
  comm->pending = [device = comm->device, mesh = comm->mesh] {
    if (TheEngine().AdvanceDevice(device)) return ncclInProgress;
    mesh->SayGoodbye();
    return ncclSuccess;
  };
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  std::unique_lock lock(TheEngine().mutex());
  if (comm == nullptr) return ncclInvalidArgument;
  CheckCallersDevice(*comm, "ncclCommDestroy");
  TheEngine().AwaitDevice(lock, comm->device);
  if (comm->aborted.use_count() > 1 && TheEngine().error() == cudaSuccess) {
    TheEngine().Fail("NCCL: a communicator is destroyed while graphs still refer to it");
  }
  Delete(comm);
  return ncclSuccess;
}

// Waits, as the real one, until what was launched has come to its end and no graph refers to it.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::unique_lock lock(TheEngine().mutex());
  if (comm == nullptr) return ncclInvalidArgument;
  CheckCallersDevice(*comm, "ncclCommAbort");
  *comm->aborted = true;
  comm->mesh->Close();
  comm->pending = nullptr;
  TheEngine().NotifyChange();
  TheEngine().AwaitCondition(lock, "the end of a communicator that was aborted", [&] {
    TheEngine().AdvanceDevice(comm->device);
    return comm->aborted.use_count() == 1;
  });
  Delete(comm);
  return ncclSuccess;
}

namespace {

ncclResult_t EnqueueSum(ncclComm_t comm, cudaStream_t stream, ncclRedOp_t op,
                        const Operation& operation) {
  if (op != ncclSum || (operation.type != ncclFloat32 && operation.type != ncclInt32)) {
    return Refuse(comm, ncclInvalidArgument, "only sums of f32 and int32 are emulated");
  }
  return Enqueue(comm, stream, operation);
}

}  // namespace

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return EnqueueSum(comm, stream, op, {Operation::Kind::kAllReduce, from, to, count, type, -1});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return EnqueueSum(comm, stream, op, {Operation::Kind::kReduceScatter, from, to, count, type, -1});
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return Enqueue(comm, stream, {Operation::Kind::kAllGather, from, to, count, type, -1});
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return Enqueue(comm, stream, {Operation::Kind::kSend, from, nullptr, count, type, peer});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return Enqueue(comm, stream, {Operation::Kind::kRecv, nullptr, to, count, type, peer});
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const std::lock_guard lock(TheEngine().mutex());
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  return Start(std::exchange(grouped, {}));
}
