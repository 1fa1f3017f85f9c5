// A call that can be suspended and gone on with: one thread of a block. While fibers run, one after
// the other, the system thread that resumed the first is theirs.
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
  // Until the call, or one that it went over to, suspends or ends.
  void Resume();
  // By the call itself: back to Resume's caller, or on with another.
  void Suspend();
  void GoOverTo(Fiber& next);
  bool ended() const { return ended_; }

 private:
  struct Trampoline;
  // Who waits in Resume.
  struct Resumer {
    void* context = nullptr;
    // For the sanitizers, which must be told whose stack is in use.
    void* fake_stack = nullptr;
    const void* stack = nullptr;
    size_t stack_bytes = 0;
    void* thread_fiber = nullptr;
  };
  void Arrive(void* context_of_former);

  void* stack_ = nullptr;  // lowest address, a page nobody may touch before it
  void* context_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
  Resumer* resumer_ = nullptr;
  Fiber* former_ = nullptr;  // which went over to this one; null: its resumer did
  void* fake_stack_ = nullptr;
  void* thread_fiber_ = nullptr;
};

}  // namespace lockstep::cuda_emulation
