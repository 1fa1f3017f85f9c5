#include "tests/support/cuda_emulation/runtime/async_proxy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/support/cuda_emulation/runtime/device_memory.h"
#include "tests/support/cuda_emulation/runtime/tensor_map.h"

namespace lockstep::cuda_emulation {

namespace {

constexpr uint32_t kChunk = 16;
constexpr int64_t kMostBytesOfPhase = (1 << 20) - 1;

// Chunk bits 4-6 of an address are flipped by its bits 7-9.
uint32_t Swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

}  // namespace

AsyncProxy::AsyncProxy(BlockRunner& runner, char* shared, size_t bytes)
    : runner_(runner),
      shared_(shared),
      bytes_(bytes),
      known_(shared, shared + bytes),
      written_by_(bytes / kChunk + 1, int16_t{-1}),
      written_(runner.num_threads()),
      gave_up_(runner.num_threads(), false),
      products_(runner, *this) {}

uint32_t AsyncProxy::AddressOf(const void* shared, const Site& site) const {
  const auto offset = static_cast<const char*>(shared) - shared_;
  if (offset < 0 || offset >= static_cast<int64_t>(bytes_)) {
    FailThread("an address outside of dynamic shared memory", site);
  }
  return kSharedBase + static_cast<uint32_t>(offset);
}

// ---- barriers ----

void AsyncProxy::Init(const void* barrier, uint32_t arrivals, const Site& site) {
  const uint32_t address = AddressOf(barrier, site);
  if (address % 8 != 0) FailThread("mbarrier.init: not aligned to 8 bytes", site);
  if (arrivals == 0 || arrivals >= 1 << 20) FailThread("mbarrier.init: a bad count", site);
  Barrier made;
  made.arrivals = arrivals;
  made.pending = arrivals;
  made.initialised_by = runner_.thread();
  if (!barriers_.emplace(address, made).second) FailThread("mbarrier.init: once more", site);
}

void AsyncProxy::FenceInit() {
  for (auto& [address, barrier] : barriers_) {
    barrier.fenced |= barrier.initialised_by == runner_.thread();
  }
}

AsyncProxy::Barrier& AsyncProxy::Find(const void* barrier, const Site& site) {
  const auto found = barriers_.find(AddressOf(barrier, site));
  if (found == barriers_.end()) FailThread("a barrier that nobody has initialised", site);
  return found->second;
}

void AsyncProxy::Arrive(const void* barrier, uint32_t expected_bytes, const Site& site) {
  NoteWrites();
  Barrier& mine = Find(barrier, site);
  if (mine.pending == 0) FailThread("mbarrier.arrive: more arrivals than were to come", site);
  mine.bytes += expected_bytes;
  if (mine.bytes > kMostBytesOfPhase) FailThread("mbarrier: too many bytes expected", site);
  --mine.pending;
  EndPhaseIfComplete(mine);
}

void AsyncProxy::EndPhaseIfComplete(Barrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.parity ^= 1;
  barrier.pending = barrier.arrivals;
  for (const int thread : std::exchange(barrier.waiting, {})) runner_.Wake(thread);
}

bool AsyncProxy::TryWait(const void* barrier, uint32_t parity, const Site& site) {
  if (parity > 1) FailThread("mbarrier.try_wait: a parity is 0 or 1", site);
  Barrier& mine = Find(barrier, site);
  if (mine.parity == parity && num_waits_++ % 8 < 3) return false;  // a wait's time is over
  while (mine.parity == parity) {
    mine.waiting.push_back(runner_.thread());
    runner_.Park("mbarrier.try_wait", site);
    const int thread = runner_.thread();
    if (gave_up_[thread]) {
      gave_up_[thread] = false;
      return mine.parity != parity;
    }
  }
  return true;
}

int64_t AsyncProxy::Clock() {
  constexpr int kLooksToALeap = 16;
  const int look = ++num_looks_ % (2 * kLooksToALeap);
  const bool leaps = look % kLooksToALeap == 0;
  return clock_ += !leaps ? 100 : look == 0 ? -kLeap : kLeap;
}

void AsyncProxy::NamedBarrier(int id, int threads, bool wait, const Site& site) {
  NoteWrites();
  if (id < 1 || id > 15) FailThread("bar: barriers of a block are numbered 1 to 15", site);
  Named& barrier = named_[id];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) FailThread("bar: others count other threads", site);
  if (wait) barrier.waiting.push_back(runner_.thread());
  if (++barrier.arrived < threads) {
    if (wait) runner_.Park("bar.sync", site);
    return;
  }
  barrier.arrived = 0;
  if (barrier.votes != 0 && barrier.votes != threads) {
    FailThread("bar.red: others came without a vote", site);
  }
  barrier.votes = 0;
  barrier.was_any_true = std::exchange(barrier.any_true, false);
  for (const int thread : std::exchange(barrier.waiting, {})) {
    if (thread != runner_.thread()) runner_.Wake(thread);
  }
}

// The votes stand until all have gone on and come once more.
bool AsyncProxy::NamedBarrierAny(int id, int threads, bool mine, const Site& site) {
  if (id >= 1 && id <= 15) {
    ++named_[id].votes;
    named_[id].any_true |= mine;
  }
  NamedBarrier(id, threads, true, site);
  return named_[id].was_any_true;
}

// ---- copies ----

void AsyncProxy::Copy(void* shared, const CUtensorMap& map, const void* barrier,
                      std::array<int, 3> at, const Site& site) {
  NoteWrites();
  const TensorMap tensor = MapIn(map);
  if (tensor.magic != TensorMap::kMagic || reinterpret_cast<uintptr_t>(&map) % 64 != 0) {
    FailThread("cp.async.bulk.tensor: no tensor map, or not aligned to 64 bytes", site);
  }
  if (tensor.rank != 3) FailThread("cp.async.bulk.tensor: a tensor of other dimensions", site);
  const uint32_t to = AddressOf(shared, site);
  if (to % 128 != 0) FailThread("cp.async.bulk.tensor: not aligned to 128 bytes", site);
  if (!Find(barrier, site).fenced) {
    FailThread("cp.async.bulk.tensor: fence.mbarrier_init is missing", site);
  }
  const uint32_t bytes =
      uint32_t{tensor.box[0]} * tensor.box[1] * tensor.box[2] * tensor.element_bytes;
  if (to + bytes > kSharedBase + bytes_) {
    FailThread("cp.async.bulk.tensor: beyond shared memory", site);
  }
  static constexpr char kUnknown[kChunk] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                            -1, -1, -1, -1, -1, -1, -1, -1};
  for (uint32_t offset = 0; offset < bytes; offset += kChunk) {
    if (written_by_[(to + offset - kSharedBase) / kChunk] >= 0) {
      FailThread("cp.async.bulk.tensor: over what was written without fence.proxy.async", site);
    }
    Write16(to + offset, kUnknown);
  }
  copies_.push_back({to, map, AddressOf(barrier, site), at, site});
}

void AsyncProxy::Write16(uint32_t address, const char* bytes) {
  std::memcpy(shared_ + (address - kSharedBase), bytes, kChunk);
  std::memcpy(known_.data() + (address - kSharedBase), bytes, kChunk);
}

void AsyncProxy::WriteBox(const Pending& copy) {
  const TensorMap map = MapIn(copy.map);
  const auto size = [&](int i) { return map.dims[i] == 0 ? int64_t{1} << 32 : map.dims[i]; };
  const int per_chunk = static_cast<int>(kChunk) / map.element_bytes;
  uint32_t to = copy.to;
  for (int z = 0; z < map.box[2]; ++z) {
    for (int y = 0; y < map.box[1]; ++y) {
      const int64_t row = copy.at[1] + int64_t{y};
      const int64_t plane = copy.at[2] + int64_t{z};
      const bool exists = row >= 0 && row < size(1) && plane >= 0 && plane < size(2);
      for (int x = 0; x < map.box[0]; x += per_chunk, to += kChunk) {
        char chunk[kChunk] = {};
        for (int i = 0; exists && i < per_chunk; ++i) {
          const int64_t column = copy.at[0] + int64_t{x} + i;
          if (column < 0 || column >= size(0)) continue;
          const char* from = map.address + plane * static_cast<int64_t>(map.strides[1]) +
                             row * static_cast<int64_t>(map.strides[0]) +
                             column * map.element_bytes;
          if (i == 0 && !TheDeviceMemory().Holds(from, map.element_bytes)) {
            return runner_.FailBlock("cp.async.bulk.tensor: a source not in the device's memory");
          }
          std::memcpy(chunk + i * map.element_bytes, from, map.element_bytes);
        }
        Write16(map.swizzled ? Swizzled(to) : to, chunk);
      }
    }
  }
}

void AsyncProxy::Deliver(size_t index) {
  const Pending copy = copies_[index];
  copies_.erase(copies_.begin() + static_cast<int64_t>(index));
  WriteBox(copy);
  const TensorMap map = MapIn(copy.map);
  Barrier& barrier = barriers_.at(copy.barrier);
  barrier.bytes -= int64_t{map.box[0]} * map.box[1] * map.box[2] * map.element_bytes;
  EndPhaseIfComplete(barrier);
}

bool AsyncProxy::Advance() {
  if (!copies_.empty()) {
    Deliver(runner_.Pick(copies_.size()));
    return true;
  }
  bool woken = false;
  for (auto& [address, barrier] : barriers_) {
    for (const int thread : std::exchange(barrier.waiting, {})) {
      gave_up_[thread] = true;
      runner_.Wake(thread);
      woken = true;
    }
  }
  clock_ += kLeap;
  return woken;
}

void AsyncProxy::MaybeAdvance() {
  while (!copies_.empty() && (runner_.IsHasty() || runner_.Chance(8))) {
    Deliver(runner_.Pick(copies_.size()));
  }
}

// ---- what threads write ----

void AsyncProxy::NoteWrites() {
  const auto differs = [&](size_t begin, size_t count) {
    return std::memcmp(known_.data() + begin, shared_ + begin, count) != 0;
  };
  const auto thread = static_cast<int16_t>(runner_.thread());
  constexpr size_t kPage = 1024;
  for (size_t page = 0; page < bytes_; page += kPage) {
    const size_t end = std::min(page + kPage, bytes_);
    if (!differs(page, end - page)) continue;
    for (size_t begin = page; begin < end; begin += kChunk) {
      const size_t count = std::min<size_t>(kChunk, end - begin);
      if (!differs(begin, count)) continue;
      std::memcpy(known_.data() + begin, shared_ + begin, count);
      if (std::exchange(written_by_[begin / kChunk], thread) == thread) continue;
      written_[thread].push_back(static_cast<uint32_t>(begin / kChunk));
    }
  }
}

void AsyncProxy::Fence() {
  NoteWrites();
  const auto thread = static_cast<int16_t>(runner_.thread());
  for (const uint32_t chunk : written_[thread]) {
    if (written_by_[chunk] == thread) written_by_[chunk] = -1;  // else others wrote there later
  }
  written_[thread].clear();
}

const char* AsyncProxy::Read16(uint32_t address) const {
  const uint32_t offset = Swizzled(address) - kSharedBase;
  if (address < kSharedBase || offset + kChunk > bytes_) return nullptr;
  return written_by_[offset / kChunk] >= 0 ? nullptr : shared_ + offset;
}

std::string AsyncProxy::Leftover() const {
  if (!copies_.empty()) return "a block ended with copies on their way";
  return products_.Leftover();
}

}  // namespace lockstep::cuda_emulation
