// Instructions that read and write memory, at once or in the background.
// Source: PTX ISA, "Data Movement and Conversion Instructions", "atom", "cp.async".
#include <cstring>

#include <device_instructions.cuh>

#include "tests/support/cuda_emulation/compiled/by_type.h"
#include "tests/support/cuda_emulation/compiled/opcode.h"
#include "tests/support/cuda_emulation/compiled/thread.h"
#include "tests/support/cuda_emulation/runtime/block_runner.h"

namespace lockstep::cuda_emulation::ptx {

namespace {

// Numbers fill the register that they come into: of T, an integer, by its sign.
template <typename T>
void SetLoaded(Thread& t, int r, bool is_wide, const char* from) {
  T number;
  std::memcpy(&number, from, sizeof(T));
  const auto filled = static_cast<uint64_t>(static_cast<int64_t>(number));
  if (is_wide) return t.Set<uint64_t>(r, filled);
  t.Set<uint32_t>(r, static_cast<uint32_t>(filled));
}

template <typename T>
void Load(Thread& t, const Instruction& i) {
  const bool is_vector = i.count > 1;
  const char* from = t.Resolve(i, is_vector ? 0 : 1, static_cast<size_t>(i.count) * sizeof(T));
  if (!is_vector) return SetLoaded<T>(t, i.r[0], !i.IsShort(0), from);
  for (int k = 0; k < i.count; ++k) SetLoaded<T>(t, i.list[k], i.is_wide, from + k * sizeof(T));
}
Execute LoadOf(Type type) {
  switch (type) {
    case Type::kU8:
      return &Load<uint8_t>;
    case Type::kS8:
      return &Load<int8_t>;
    case Type::kF16:
      return &Load<uint16_t>;
    case Type::kF32:
      return &Load<uint32_t>;
    case Type::kF64:
      return &Load<uint64_t>;
    default:
      return ForIntegers(type, [](auto number) -> Execute { return &Load<decltype(number)>; });
  }
}

void Store(Thread& t, const Instruction& i) {
  const int bytes = BytesOf(i.type);
  char* to = t.Resolve(i, 0, static_cast<size_t>(i.count * bytes));
  for (int k = 0; k < i.count; ++k) {
    std::memcpy(to + k * bytes, t.words(i.count > 1 ? i.list[k] : i.r[1]), bytes);
  }
}

// A thread that finds what it has found before waits for another device.
void LoadAcquire(Thread& t, const Instruction& i) {
  const auto* from = reinterpret_cast<const uint32_t*>(t.Resolve(i, 1, sizeof(uint32_t)));
  const uint32_t value = cuda::LoadAcquireSystem(from);
  t.Set<uint32_t>(i.r[0], value);
  if (t.ReadsAgain(from, value)) cuda::SpinPause();
}
void StoreRelease(Thread& t, const Instruction& i) {
  auto* to = reinterpret_cast<uint32_t*>(t.Resolve(i, 0, sizeof(uint32_t)));
  cuda::StoreReleaseSystem(to, t.Get<uint32_t>(i.r[1]));
}

Space SpaceOf(const Opcode& opcode) {
  if (opcode.Has("param")) return Space::kParameter;
  if (opcode.Has("global")) return Space::kGlobal;
  if (opcode.Has("shared") || opcode.Has("shared::cta")) return Space::kShared;
  return opcode.Has("local") ? Space::kLocal : Space::kGeneric;
}

Execute FindAccess(const Opcode& opcode, Instruction& i) {
  i.space = SpaceOf(opcode);
  i.count = opcode.Has("v4") ? 4 : opcode.Has("v2") ? 2 : 1;
  const bool is_load = opcode.name == "ld";
  const size_t in_list = i.count > 1 ? i.count : 0;
  if (BytesOf(i.type) == 0 || opcode.types.size() != 1 || i.list.size() != in_list) return nullptr;
  if (opcode.Has("acquire") || opcode.Has("release")) {
    if (!opcode.Has("sys") || i.type != Type::kU32 || i.count != 1) return nullptr;
    return is_load ? &LoadAcquire : &StoreRelease;
  }
  return is_load ? LoadOf(i.type) : &Store;
}

// ---- read, change and write as one; threads of a block take turns ----

struct Sum {
  template <typename T>
  T operator()(T old, T given) const {
    return static_cast<T>(old + given);
  }
};
struct Smaller {
  template <typename T>
  T operator()(T old, T given) const {
    return given < old ? given : old;
  }
};
struct Larger {
  template <typename T>
  T operator()(T old, T given) const {
    return given > old ? given : old;
  }
};
struct NextUpTo {
  template <typename T>
  T operator()(T old, T given) const {
    return old >= given ? T{0} : static_cast<T>(old + 1);
  }
};

template <typename T, typename Change>
void Atomically(Thread& t, const Instruction& i) {
  char* at = t.Resolve(i, 1, sizeof(T));
  T old;
  std::memcpy(&old, at, sizeof(T));
  const T changed = Change()(old, t.Get<T>(i.r[2]));
  std::memcpy(at, &changed, sizeof(T));
  t.Set<T>(i.r[0], old);
}
template <typename Change>
Execute AtomicallyOf(Type type) {
  switch (type) {
    case Type::kU32:
      return &Atomically<uint32_t, Change>;
    case Type::kS32:
      return &Atomically<int32_t, Change>;
    case Type::kU64:
      return &Atomically<uint64_t, Change>;
    default:
      return nullptr;
  }
}

Execute FindAtomic(const Opcode& opcode, Instruction& i) {
  i.space = SpaceOf(opcode);
  if (i.num_r != 3) return nullptr;
  if (opcode.Has("add")) return AtomicallyOf<Sum>(i.type);
  if (opcode.Has("min")) return AtomicallyOf<Smaller>(i.type);
  if (opcode.Has("max")) return AtomicallyOf<Larger>(i.type);
  return opcode.Has("inc") ? AtomicallyOf<NextUpTo>(i.type) : nullptr;
}

// ---- in the background ----

// r: to, from, 16, how many of these are read
void CopyAsync(Thread& t, const Instruction& i) {
  constexpr size_t kBytes = 16;
  const auto read = i.num_r > 3 ? t.Get<uint32_t>(i.r[3]) : kBytes;
  if (read != 0 && read != kBytes) FailThread("cp.async: neither 0 nor 16 bytes", i.site);
  const auto from = t.Get<uint64_t>(i.r[1]);
  if (t.counter() != nullptr && read != 0) t.CountAccess(i, from, kBytes, false, false);
  void* const to = t.Resolve(i, 0, kBytes, Space::kShared, true);
  cuda::CopyAsync16(to, reinterpret_cast<const void*>(from), read != 0, i.site);
}
void CommitCopies(Thread&, const Instruction&) { cuda::CopyAsyncCommit(); }
void AwaitCopies(Thread& t, const Instruction& i) {
  TheBlockRunner().AwaitCopies(t.Get<int>(i.r[0]));
}
void Prefetch(Thread& t, const Instruction& i) {
  cuda::PrefetchToCache2(reinterpret_cast<const void*>(t.Get<uint64_t>(i.r[0])),
                         t.Get<uint32_t>(i.r[1]), i.site);
}

}  // namespace

Execute FindMemory(const Opcode& opcode, Instruction& i) {
  if (opcode.name == "ld" || opcode.name == "st") return FindAccess(opcode, i);
  if (opcode.name == "atom") return FindAtomic(opcode, i);
  if (opcode.name != "cp" || !opcode.Has("async")) return nullptr;
  if (opcode.Has("bulk")) return opcode.Has("prefetch") ? &Prefetch : nullptr;
  if (opcode.Has("commit_group")) return &CommitCopies;
  if (opcode.Has("wait_group")) return &AwaitCopies;
  return opcode.Has("cg") && opcode.Has("shared") && opcode.Has("global") ? &CopyAsync : nullptr;
}

}  // namespace lockstep::cuda_emulation::ptx
