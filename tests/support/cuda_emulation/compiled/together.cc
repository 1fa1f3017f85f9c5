// Instructions by which threads wait for each other or do something together, and those of Hopper's
// that go on beside them. What they do, and what is enforced of it, is the emulation's own
// (runtime/): here it is found out what nvcc has made of the calls.
// Source: PTX ISA, "bar", "shfl.sync", "vote.sync", "mma", "ldmatrix", "mbarrier",
// "cp.async.bulk.tensor", "wgmma", "griddepcontrol".
#include <device_instructions.cuh>
#include <hopper_instructions.cuh>
#include <wgmma.cuh>

#include "tests/support/cuda_emulation/compiled/opcode.h"
#include "tests/support/cuda_emulation/compiled/thread.h"
#include "tests/support/cuda_emulation/runtime/async_proxy.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"
#include "tests/support/cuda_emulation/runtime/tensor_map.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

void Nothing(Thread&, const Instruction&) {}
void Branch(Thread& t, const Instruction& i) { t.GoTo(i.target); }
void Return(Thread& t, const Instruction&) { t.Return(); }

// ---- barriers ----

// All threads that have not returned meet.
bool MeetAll(Thread& t, bool vote, const Instruction& i) {
  const bool any = BlockBarrierOr(vote, i.site);
  if (t.races() != nullptr) t.races()->LeaveAll(Thread::number());
  return any;
}

enum class Visit { kArrive, kWait, kVote };
// Some threads meet at a barrier of their own; is a vote true on any?
bool MeetNamed(Thread& t, int id, int threads, Visit visit, bool vote, const Instruction& i) {
  int64_t generation = 0;
  if (t.races() != nullptr) {
    generation = t.races()->ArriveAtNamed(Thread::number(), id, threads);
  }
  bool any = false;
  if (visit == Visit::kVote) {
    any = cuda::emulated::NamedBarrierAny(id, threads, vote, i.site);
  } else {
    cuda::emulated::NamedBarrier(id, threads, visit == Visit::kWait, i.site);
  }
  if (t.races() != nullptr && visit != Visit::kArrive) {
    t.races()->LeaveNamed(Thread::number(), id, generation);
  }
  return any;
}

// r: number, threads
void BarrierSync(Thread& t, const Instruction& i) {
  const int id = t.Get<int>(i.r[0]);
  if (i.num_r == 1 && id != 0) FailThread("bar.sync: not how many threads", i.site);
  if (i.num_r == 1) {
    MeetAll(t, false, i);
  } else {
    MeetNamed(t, id, t.Get<int>(i.r[1]), Visit::kWait, false, i);
  }
}
void BarrierArrive(Thread& t, const Instruction& i) {
  MeetNamed(t, t.Get<int>(i.r[0]), t.Get<int>(i.r[1]), Visit::kArrive, false, i);
}
// r: result, number, threads unless all, mine
void BarrierOr(Thread& t, const Instruction& i) {
  const int id = t.Get<int>(i.r[1]);
  const bool mine = t.IsTrue(i.r[i.num_r - 1]);
  if (i.num_r == 3 && id != 0) FailThread("bar.red: not how many threads", i.site);
  t.SetTrue(i.r[0], i.num_r == 3 ? MeetAll(t, mine, i)
                                 : MeetNamed(t, id, t.Get<int>(i.r[2]), Visit::kVote, mine, i));
}
void SyncWarp(Thread& t, const Instruction& i) {
  const auto mask = t.Get<uint32_t>(i.r[0]);
  if (t.races() != nullptr) t.races()->ArriveAtWarp(Thread::number(), mask);
  __syncwarp(mask, i.site);
  if (t.races() != nullptr) t.races()->LeaveWarp(Thread::number(), mask);
}

Execute FindBarrier(const Opcode& opcode, const Instruction& i) {
  if (opcode.Has("warp")) return opcode.Has("sync") ? &SyncWarp : nullptr;
  if (opcode.Has("sync")) return &BarrierSync;
  if (opcode.Has("arrive")) return i.num_r == 2 ? &BarrierArrive : nullptr;
  return opcode.Has("red") && opcode.Has("or") ? &BarrierOr : nullptr;
}

// ---- exchanges of a warp ----

enum ShuffleMode : uint8_t { kIndexed, kUp, kDown, kCrossed };

// Which lane is read; the lane itself where the wanted one is outside of its segment. `c`: the
// segment's mask above bit 8, and below it the last lane, or for kUp the first.
int SourceLane(uint8_t mode, uint32_t b, uint32_t c, bool* is_inside) {
  const auto lane = static_cast<uint32_t>(CurrentLane());
  const uint32_t segment = c >> 8 & 0x1f;
  const uint32_t most = (lane & segment) | (c & 0x1f & ~segment);
  const uint32_t least = lane & segment;
  const auto signed_lane = static_cast<int>(lane);
  int from = 0;
  switch (mode) {
    case kUp:
      from = signed_lane - static_cast<int>(b & 0x1f);
      *is_inside = from >= static_cast<int>(most);
      break;
    case kDown:
      from = signed_lane + static_cast<int>(b & 0x1f);
      *is_inside = from <= static_cast<int>(most);
      break;
    case kCrossed:
      from = static_cast<int>(lane ^ (b & 0x1f));
      *is_inside = from <= static_cast<int>(most);
      break;
    default:
      from = static_cast<int>(least | (b & 0x1f & ~segment));
      *is_inside = from <= static_cast<int>(most);
  }
  return *is_inside ? from : signed_lane;
}

// r: result, whether it is another's, value, b, c, mask
void ShuffleLanes(Thread& t, const Instruction& i) {
  bool is_inside = false;
  const int from = SourceLane(i.mode, t.Get<uint32_t>(i.r[3]), t.Get<uint32_t>(i.r[4]), &is_inside);
  const auto result =
      ShuffleFrom("shfl.sync", t.Get<uint32_t>(i.r[5]), t.Get<uint32_t>(i.r[2]), from, i.site);
  t.Set<uint32_t>(i.r[0], result);
  t.SetTrue(i.r[1], is_inside);
}
Execute FindShuffle(const Opcode& opcode, Instruction& i) {
  i.mode = opcode.Has("up")     ? kUp
           : opcode.Has("down") ? kDown
           : opcode.Has("bfly") ? kCrossed
                                : kIndexed;
  return i.num_r == 6 && BytesOf(i.type) == 4 ? &ShuffleLanes : nullptr;
}

uint32_t VotesOf(Thread& t, const Instruction& i) {
  return Ballot("vote.sync", t.Get<uint32_t>(i.r[2]), t.IsTrue(i.r[1]), i.site);
}
void VoteAny(Thread& t, const Instruction& i) { t.SetTrue(i.r[0], VotesOf(t, i) != 0); }
void VoteAll(Thread& t, const Instruction& i) {
  t.SetTrue(i.r[0], VotesOf(t, i) == t.Get<uint32_t>(i.r[2]));
}
void VoteBallot(Thread& t, const Instruction& i) { t.Set<uint32_t>(i.r[0], VotesOf(t, i)); }
Execute FindVote(const Opcode& opcode) {
  if (opcode.Has("any")) return &VoteAny;
  if (opcode.Has("all")) return &VoteAll;
  return opcode.Has("ballot") ? &VoteBallot : nullptr;
}

// ---- products of a warp ----

// list: d (4), a (4), b (2), c (4)
template <bool is_f16>
void WarpProduct(Thread& t, const Instruction& i) {
  const int* r = i.list.data();
  float d[4];
  uint32_t a[4];
  uint32_t b[2];
  for (int k = 0; k < 4; ++k) a[k] = t.Get<uint32_t>(r[4 + k]);
  for (int k = 0; k < 2; ++k) b[k] = t.Get<uint32_t>(r[8 + k]);
  for (int k = 0; k < 4; ++k) d[k] = t.Get<float>(r[10 + k]);
  cuda::emulated::Mma(is_f16, d, a, b, i.site);
  for (int k = 0; k < 4; ++k) t.Set<float>(r[k], d[k]);
}
Execute FindWarpProduct(const Opcode& opcode, const Instruction& i) {
  if (!opcode.Has("m16n8k16") || !opcode.Has("row") || !opcode.Has("col") || i.list.size() != 14) {
    return nullptr;
  }
  if (opcode.Has("bf16")) return &WarpProduct<false>;
  return opcode.Has("f16") ? &WarpProduct<true> : nullptr;
}

template <bool transposed>
void LoadMatrices(Thread& t, const Instruction& i) {
  uint32_t r[4];
  const void* row = t.Resolve(i, 0, 16);
  if (transposed) {
    cuda::LoadMatrix4Transposed(r, row, i.site);
  } else {
    cuda::LoadMatrix4(r, row, i.site);
  }
  for (int k = 0; k < 4; ++k) t.Set<uint32_t>(i.list[k], r[k]);
}
Execute FindLoadMatrix(const Opcode& opcode, Instruction& i) {
  i.space = Space::kShared;
  if (!opcode.Has("m8n8") || !opcode.Has("x4") || i.list.size() != 4) return nullptr;
  return opcode.Has("trans") ? &LoadMatrices<true> : &LoadMatrices<false>;
}

// ---- Hopper ----

uint64_t* BarrierAt(Thread& t, const Instruction& i, int index) {
  return reinterpret_cast<uint64_t*>(t.Resolve(i, index, sizeof(uint64_t)));
}
void InitBarrier(Thread& t, const Instruction& i) {
  cuda::BarrierInit(BarrierAt(t, i, 0), t.Get<uint32_t>(i.r[1]), i.site);
}
void ArriveAtBarrier(Thread& t, const Instruction& i) {
  const uint32_t bytes = i.num_r > 2 ? t.Get<uint32_t>(i.r[2]) : 0;
  uint64_t* const barrier = BarrierAt(t, i, 1);
  if (t.races() != nullptr) t.races()->ArriveAt(Thread::number(), Thread::SharedOffset(barrier));
  cuda::BarrierArriveExpect(barrier, bytes, i.site);
}
void TryWaitForBarrier(Thread& t, const Instruction& i) {
  uint64_t* const barrier = BarrierAt(t, i, 1);
  const bool ended = cuda::BarrierTryWait(barrier, t.Get<uint32_t>(i.r[2]), i.site);
  if (ended && t.races() != nullptr) {
    t.races()->WaitedFor(Thread::number(), Thread::SharedOffset(barrier));
  }
  t.SetTrue(i.r[0], ended);
}
Execute FindMemoryBarrier(const Opcode& opcode, Instruction& i) {
  i.space = Space::kShared;
  if (opcode.Has("init")) return &InitBarrier;
  if (opcode.Has("arrive"))
    return i.num_r == (opcode.Has("expect_tx") ? 3 : 2) ? &ArriveAtBarrier : nullptr;
  return opcode.Has("try_wait") && opcode.Has("parity") ? &TryWaitForBarrier : nullptr;
}

// Rows of boxes of one slab, those that exist.
void CountBox(LaunchCounter& counter, const TensorMap& map, int column, int plane) {
  const auto row_bytes = static_cast<uint32_t>(map.box[0] * map.element_bytes);
  if (plane < 0 || static_cast<uint64_t>(plane) >= map.dims[2]) return;
  for (int row = 0; row < map.box[1]; ++row) {
    const char* from =
        map.address + plane * map.strides[1] + row * map.strides[0] + column * map.element_bytes;
    counter.AddBulkRead(reinterpret_cast<uint64_t>(from), row_bytes);
  }
}
// r: to, map, barrier; list: coordinates
void CopyTensorBox(Thread& t, const Instruction& i) {
  const auto* map = reinterpret_cast<const CUtensorMap*>(t.Get<uint64_t>(i.r[1]));
  const auto at = [&](int k) { return t.Get<int>(i.list[k]); };
  if (t.counter() != nullptr) CountBox(*t.counter(), MapIn(*map), at(0), at(2));
  cuda::CopyBox(t.Resolve(i, 0, 16), *map, BarrierAt(t, i, 2), at(0), at(1), at(2), i.site);
}
Execute FindBulkCopy(const Opcode& opcode, Instruction& i) {
  i.space = Space::kShared;
  const bool is_known = opcode.Has("bulk") && opcode.Has("tensor") && opcode.Has("3d") &&
                        opcode.Has("tile") && i.list.size() == 3 && i.num_r == 3;
  return is_known ? &CopyTensorBox : nullptr;
}

void FenceAsync(Thread&, const Instruction&) { cuda::FenceAsyncProxy(); }
void FenceBarriers(Thread&, const Instruction&) { cuda::FenceBarrierInit(); }
Execute FindFence(const Opcode& opcode) {
  if (opcode.Has("proxy")) return opcode.Has("async") ? &FenceAsync : nullptr;
  return opcode.Has("mbarrier_init") ? &FenceBarriers : &Nothing;
}

// ---- products of a warpgroup ----

// All that products may read: nothing of it may change before they are issued.
void FenceProducts(Thread& t, const Instruction& i) {
  cuda::emulated::FenceRegisters(t.words(i.product_operands.begin), i.product_operands.count);
  cuda::emulated::WgmmaFence(i.site);
}
void CommitProducts(Thread&, const Instruction& i) { cuda::emulated::WgmmaCommit(i.site); }
void AwaitProducts(Thread& t, const Instruction& i) {
  cuda::emulated::WgmmaWait(t.Get<int>(i.r[0]), nullptr, i.site);
}

bool AreAdjacent(const std::vector<int>& list, size_t begin, size_t count) {
  for (size_t k = 1; k < count; ++k) {
    if (list[begin + k] != list[begin] + static_cast<int>(k)) return false;
  }
  return true;
}

// list: sums, and a where it lies in registers. r: a's descriptor otherwise, b's, whether sums are
// kept, signs of a and b, whether a and b are transposed. i.mode: f16 instead of bf16.
void WarpgroupProduct(Thread& t, const Instruction& i) {
  const size_t num_sums = static_cast<size_t>(i.count) * 4;
  const bool has_registers = i.list.size() > num_sums;
  const int* r = i.r.data() + (has_registers ? 0 : 1);  // b, keep, sign, sign[, a transposed], b
  const auto number = [&](int k) { return t.Get<int>(r[k]); };
  const bool b_transposed = number(has_registers ? 4 : 5) != 0;
  if (number(2) != 1 || number(3) != 1) FailThread("wgmma: a sign that is not emulated", i.site);
  if (b_transposed != has_registers || (!has_registers && number(4) != 0)) {
    FailThread("wgmma: an order of operands that is not emulated", i.site);
  }
  cuda::emulated::IssueProduct(
      {i.mode != 0, reinterpret_cast<float*>(t.words(i.list[0])), i.count * 8,
       t.Get<uint32_t>(r[1]) != 0, has_registers ? t.words(i.list[num_sums]) : nullptr,
       has_registers ? 0 : t.Get<uint64_t>(i.r[0]), t.Get<uint64_t>(r[0])},
      i.site);
}
Execute FindWarpgroupProduct(const Opcode& opcode, Instruction& i) {
  if (opcode.Has("fence")) return &FenceProducts;
  if (opcode.Has("commit_group")) return &CommitProducts;
  if (opcode.Has("wait_group")) return &AwaitProducts;
  if (!opcode.Has("mma_async") || !opcode.Has("f32")) return nullptr;
  i.mode = opcode.Has("bf16") ? 0 : 1;
  i.count = opcode.Has("m64n128k16") ? 16 : opcode.Has("m64n64k16") ? 8 : 0;
  const size_t num_sums = static_cast<size_t>(i.count) * 4;
  const size_t num_factors = i.list.size() - num_sums;
  if (i.count == 0 || !AreAdjacent(i.list, 0, num_sums)) return nullptr;
  if (num_factors != 0 && (num_factors != 4 || !AreAdjacent(i.list, num_sums, 4))) return nullptr;
  return i.num_r == (num_factors == 0 ? 7 : 5) ? &WarpgroupProduct : nullptr;
}

// ---- kernels that overlap ----

void AwaitEarlier(Thread&, const Instruction&) { cuda::WaitForEarlierKernels(); }
void LetLaterBegin(Thread&, const Instruction&) { cuda::LetLaterKernelsBegin(); }

}  // namespace

Execute FindTogether(const Opcode& opcode, Instruction& i) {
  const std::string& name = opcode.name;
  if (name == "bra") return &Branch;
  if (name == "ret" || name == "exit") return &Return;
  if (name == "bar" || name == "barrier") return FindBarrier(opcode, i);
  if (name == "shfl") return FindShuffle(opcode, i);
  if (name == "vote") return FindVote(opcode);
  if (name == "mma") return FindWarpProduct(opcode, i);
  if (name == "ldmatrix") return FindLoadMatrix(opcode, i);
  if (name == "mbarrier") return FindMemoryBarrier(opcode, i);
  if (name == "cp") return FindBulkCopy(opcode, i);
  if (name == "fence") return FindFence(opcode);
  if (name == "membar" || name == "setmaxnreg") return &Nothing;  // registers are not counted
  if (name == "wgmma") return FindWarpgroupProduct(opcode, i);
  if (name != "griddepcontrol") return nullptr;
  return opcode.Has("wait") ? &AwaitEarlier : &LetLaterBegin;
}

}  // namespace lockstep::cuda_emulation::ptx
