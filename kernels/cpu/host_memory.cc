#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace lockstep::cpu {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
// From this size on, pages are mapped directly. AddressSanitizer guards only what its own allocator
// gives, and aborts where that cannot give it.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kMapFrom = int64_t{1} << 30;
#else
constexpr int64_t kMapFrom = kHugePage;
#endif

absl::Status Exhausted(int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot allocate ", bytes, " bytes of host memory"));
}

// Pages come zeroed from the kernel and are touched by whoever fills them first.
absl::StatusOr<DeviceBuffer> MapPages(int64_t bytes) {
  const size_t mapped = static_cast<size_t>(bytes) + kHugePage;
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return Exhausted(bytes);
  const auto address = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
  void* data = static_cast<char*>(base) + (aligned - address);
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint; refusal costs speed only
  return DeviceBuffer(std::shared_ptr<void>(data, [base, mapped](void*) { munmap(base, mapped); }),
                      bytes);
}

}  // namespace

absl::StatusOr<DeviceBuffer> AllocateHost(int64_t bytes) {
  if (bytes < 0)
    return absl::InvalidArgumentError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  if (bytes > (int64_t{1} << 60)) return Exhausted(bytes);
  if (bytes >= kMapFrom) return MapPages(bytes);
  const int64_t rounded = (bytes + kAlignment) / kAlignment * kAlignment;
  void* data = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  if (data == nullptr) return Exhausted(bytes);
  std::memset(data, 0, static_cast<size_t>(rounded));
  return DeviceBuffer(std::shared_ptr<void>(data, std::free), bytes);
}

}  // namespace lockstep::cpu
