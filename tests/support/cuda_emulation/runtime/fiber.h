// A call that can be suspended and gone on with: one thread of a block. All fibers that run belong
// to the one system thread that resumes them.
#pragma once

#include <cstddef>

namespace lockstep::cuda_emulation {

class Fiber {
 public:
  using Entry = void (*)(void* argument);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume begins entry(argument); a call that was suspended is forgotten, its frames
  // without being unwound.
  void Start(Entry entry, void* argument);
  // Until the call suspends or ends.
  void Resume();
  // By the call itself.
  void Suspend();
  bool ended() const { return ended_; }

 private:
  struct Trampoline;

  void* stack_ = nullptr;  // lowest address, a page nobody may touch before it
  void* context_ = nullptr;
  void* resumer_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;

  // For the sanitizers, which must be told whose stack is in use.
  void* own_fake_stack_ = nullptr;
  void* resumer_fake_stack_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_stack_bytes_ = 0;
  void* thread_fiber_ = nullptr;
  void* thread_resumer_ = nullptr;
};

}  // namespace lockstep::cuda_emulation
