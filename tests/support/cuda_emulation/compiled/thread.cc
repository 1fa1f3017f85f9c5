#include "tests/support/cuda_emulation/compiled/thread.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/async_proxy.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

// Nothing unwinds the frame of a thread that has failed: what is said must not lie on the heap.
[[noreturn]] void FailSaying(std::string what, const Site& site) {
  char said[256];
  absl::SNPrintF(said, sizeof(said), "%s", what);
  { const std::string gone = std::move(what); }
  FailThread(said, site);
}

[[noreturn]] void FailAccess(const char* what, uint64_t address, size_t bytes, const Site& site) {
  char said[256];
  absl::SNPrintF(said, sizeof(said), "%s: %d bytes at %#x", what, bytes, address);
  FailThread(said, site);
}

}  // namespace

size_t StaticSharedOffset(const Launch& launch) {
  constexpr size_t kAlignment = 128;  // of whatever lies there
  return (launch.dynamic_shared_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Thread::Thread(const Launch& launch)
    : launch_(launch),
      locals_(launch.program->local_bytes, static_cast<char>(0xff)),
      end_(static_cast<int>(launch.program->code.size())) {
  if (!launch.spare_frames->empty()) {
    frame_.swap(launch.spare_frames->back());
    launch.spare_frames->pop_back();
  }
  frame_ = launch.program->frame;
  const uint32_t told[] = {threadIdx.x,
                           threadIdx.y,
                           threadIdx.z,
                           blockIdx.x,
                           blockIdx.y,
                           blockIdx.z,
                           blockDim.x,
                           blockDim.y,
                           blockDim.z,
                           gridDim.x,
                           gridDim.y,
                           gridDim.z,
                           static_cast<uint32_t>(CurrentLane())};
  std::memcpy(frame_.data(), told, sizeof(told));
  Set(kParameters, reinterpret_cast<uint64_t>(launch.parameters.get()));
  Set(kLocals, reinterpret_cast<uint64_t>(locals_.data()));
}

void RunThread(const Launch& launch) {
  const auto mine = launch.threads->emplace(launch.threads->end(), launch);
  mine->Run();
  launch.threads->erase(mine);
}

void Thread::Run() {
  const int64_t block = (int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (launch_.races != nullptr) {
    races_ = &launch_.races->try_emplace(block, TheBlockRunner().num_threads()).first->second;
  }
  RunCounted(block);
  if (races_ != nullptr && races_->EndThread()) launch_.races->erase(block);
  launch_.spare_frames->push_back(std::move(frame_));
}

void Thread::RunCounted(int64_t block) {
  if (launch_.counter == nullptr) return RunAll<false>();
  launch_.counter->BeginThread(block);
  times_.assign(2 * static_cast<size_t>(launch_.program->num_accesses), 0);
  RunAll<true>();
}

int Thread::number() { return TheBlockRunner().thread(); }

uint32_t Thread::SharedOffset(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) -
                               static_cast<const char*>(TheBlockRunner().dynamic_shared()));
}

template <bool counts>
void Thread::RunAll() {
  const Instruction* code = launch_.program->code.data();
  while (next_ < end_) {
    const Instruction& instruction = code[next_++];
    if constexpr (counts) launch_.counter->Execute(instruction.unit);
    if (instruction.guard >= 0 && IsTrue(instruction.guard) == instruction.guard_is_negated) {
      continue;
    }
    instruction.execute(*this, instruction);
  }
}

void Thread::CountAccess(const Instruction& instruction, uint64_t address, size_t bytes,
                         bool is_shared, bool writes) {
  const int thread = number();
  const int index = 2 * instruction.access + (is_shared ? 1 : 0);  // copies access both
  launch_.counter->Add({thread / warpSize, thread % warpSize, index, times_[index]++, address,
                        static_cast<uint32_t>(bytes), is_shared, writes});
}

char* Thread::SharedPointer(uint64_t address, size_t bytes, const Site& site) {
  const bool is_static = address >= kStaticShared;
  const uint64_t offset = is_static ? address - kStaticShared + StaticSharedOffset(launch_)
                                    : address - kSharedBase;  // below it: beyond all there is
  const size_t end =
      is_static ? TheBlockRunner().dynamic_shared_bytes() : launch_.dynamic_shared_bytes;
  if (bytes > 1 && (address & (bytes - 1)) != 0) {
    FailAccess("shared memory, not aligned", address, bytes, site);
  }
  if (offset > end || bytes > end - offset) {
    FailAccess("beyond the block's shared memory", address, bytes, site);
  }
  return static_cast<char*>(TheBlockRunner().dynamic_shared()) + offset;
}

uint64_t Thread::SharedAddressOf(uint64_t pointer, const Site& site) const {
  const auto begin = reinterpret_cast<uint64_t>(TheBlockRunner().dynamic_shared());
  if (pointer - begin > TheBlockRunner().dynamic_shared_bytes()) {
    FailAccess("no address of shared memory", pointer, 0, site);
  }
  const uint64_t offset = pointer - begin;
  return offset < launch_.dynamic_shared_bytes || launch_.program->static_shared_bytes == 0
             ? kSharedBase + offset
             : kStaticShared + offset - StaticSharedOffset(launch_);
}

bool Thread::IsMine(const char* pointer, size_t bytes) const {
  const auto within = [&](const void* begin, size_t size) {
    const auto offset = static_cast<size_t>(pointer - static_cast<const char*>(begin));
    return offset <= size && bytes <= size - offset;
  };
  return within(locals_.data(), locals_.size()) ||
         within(launch_.parameters.get(), launch_.program->parameter_bytes) ||
         within(TheBlockRunner().dynamic_shared(), TheBlockRunner().dynamic_shared_bytes());
}

char* Thread::Resolve(const Instruction& instruction, int index, size_t bytes, Space space,
                      bool writes) {
  const int r = instruction.r[index];
  const uint64_t base = instruction.IsShort(index) ? Get<uint32_t>(r) : Get<uint64_t>(r);
  const uint64_t address = base + static_cast<uint64_t>(instruction.offsets[index]);
  const bool is_shared = space == Space::kShared;
  if (launch_.counter != nullptr && instruction.access >= 0 &&
      (is_shared || space == Space::kGlobal)) {
    CountAccess(instruction, address, bytes, is_shared, writes);
  }
  auto* pointer = reinterpret_cast<char*>(address);
  if ((address & (bytes - 1)) != 0) FailAccess("not aligned", address, bytes, instruction.site);
  switch (space) {
    case Space::kShared:
      return ResolveShared(instruction, address, bytes, writes);
    case Space::kParameter:
    case Space::kLocal:
      if (IsMine(pointer, bytes)) return pointer;
      break;
    case Space::kGeneric:
      if (IsMine(pointer, bytes)) return pointer;
      [[fallthrough]];
    case Space::kGlobal:
      if (TheDeviceMemory().Holds(pointer, bytes)) return pointer;
      break;
  }
  FailAccess("no memory that a kernel may access", address, bytes, instruction.site);
}

char* Thread::ResolveShared(const Instruction& instruction, uint64_t address, size_t bytes,
                            bool writes) {
  char* pointer = SharedPointer(address, bytes, instruction.site);
  if (races_ == nullptr) return pointer;
  std::string race = races_->Add({number(), SharedOffset(pointer), static_cast<uint32_t>(bytes),
                                  writes, instruction.is_atomic, instruction.site});
  if (!race.empty()) FailSaying(std::move(race), instruction.site);
  return pointer;
}

bool Thread::ReadsAgain(const void* address, uint32_t value) {
  const bool again = last_read_ == address && last_value_ == value;
  last_read_ = address;
  last_value_ = value;
  return again;
}

}  // namespace lockstep::cuda_emulation::ptx
