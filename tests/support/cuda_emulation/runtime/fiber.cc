#include "tests/support/cuda_emulation/runtime/fiber.h"

#include <sys/mman.h>

#include <atomic>

#include <boost/context/detail/fcontext.hpp>

#include "kernels/base/check.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace lockstep::cuda_emulation {

namespace {

namespace context = boost::context::detail;

constexpr size_t kGuardBytes = 4096;
constexpr size_t kStackBytes = 256 << 10;  // touched as far as it is used
constexpr size_t kFrameBytes = 4096;       // at least what the trampoline takes
// A guarded stack is two mappings, of which a process has 65,530 (vm.max_map_count); those without
// a guard lie together in one.
constexpr int kMostGuarded = 16384;
std::atomic<int> num_fibers{0};

}  // namespace

// Entered on the fiber's own stack, which it never leaves.
struct Fiber::Trampoline {
  static void Enter(context::transfer_t transfer) {
    auto* fiber = static_cast<Fiber*>(transfer.data);
    fiber->Arrive(transfer.fctx);
    fiber->entry_(fiber->argument_);
    fiber->ended_ = true;
    const Resumer& resumer = *fiber->resumer_;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(nullptr, resumer.stack, resumer.stack_bytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(resumer.thread_fiber, 0);
#endif
    context::jump_fcontext(resumer.context, fiber);
  }
};

Fiber::Fiber() {
  void* mapping = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  LS_CHECK(mapping != MAP_FAILED);
  if (num_fibers++ < kMostGuarded) LS_CHECK(mprotect(mapping, kGuardBytes, PROT_NONE) == 0);
  stack_ = static_cast<char*>(mapping) + kGuardBytes;
#ifdef __SANITIZE_THREAD__
  thread_fiber_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#ifdef __SANITIZE_ADDRESS__
  // Of one that has ended the trampoline's frame is left. To unpoison a stack is to touch what
  // tells of all of it.
  const size_t left = ended_ ? kFrameBytes : kStackBytes;
  ASAN_UNPOISON_MEMORY_REGION(static_cast<char*>(stack_) + kStackBytes - left, left);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(thread_fiber_);
#endif
  --num_fibers;
  munmap(static_cast<char*>(stack_) - kGuardBytes, kGuardBytes + kStackBytes);
}

void Fiber::Start(Entry entry, void* argument) {
  if (!ended_) {
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(stack_, kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(thread_fiber_);
    thread_fiber_ = __tsan_create_fiber(0);
#endif
  }
  entry_ = entry;
  argument_ = argument;
  ended_ = false;
  fake_stack_ = nullptr;
  context_ = context::make_fcontext(static_cast<char*>(stack_) + kStackBytes, kStackBytes,
                                    &Trampoline::Enter);
}

// Whoever leaves is known, where it stands only to the one that it goes over to.
void Fiber::Arrive(void* context_of_former) {
  if (former_ != nullptr) {
    former_->context_ = context_of_former;
  } else {
    resumer_->context = context_of_former;
  }
#ifdef __SANITIZE_ADDRESS__
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack_, &stack, &stack_bytes);
  if (former_ == nullptr) {
    resumer_->stack = stack;
    resumer_->stack_bytes = stack_bytes;
  }
#endif
}

void Fiber::Resume() {
  Resumer resumer;
  resumer_ = &resumer;
  former_ = nullptr;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&resumer.fake_stack, stack_, kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  resumer.thread_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(thread_fiber_, 0);
#endif
  const context::transfer_t back = context::jump_fcontext(context_, this);
  static_cast<Fiber*>(back.data)->context_ = back.fctx;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(resumer.fake_stack, nullptr, nullptr);
#endif
}

void Fiber::Suspend() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fake_stack_, resumer_->stack, resumer_->stack_bytes);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(resumer_->thread_fiber, 0);
#endif
  Arrive(context::jump_fcontext(resumer_->context, this).fctx);
}

void Fiber::GoOverTo(Fiber& next) {
  next.resumer_ = resumer_;
  next.former_ = this;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fake_stack_, next.stack_, kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(next.thread_fiber_, 0);
#endif
  Arrive(context::jump_fcontext(next.context_, &next).fctx);
}

}  // namespace lockstep::cuda_emulation
