// Work that was issued to a backend: steps that repeat, and places to wait for.
#pragma once

#include <compare>
#include <cstdint>

namespace lockstep {

// What tells repeated steps apart.
struct StepKey {
  StepKey(uint64_t of_shape, uint64_t of_form = 0) : shape(of_shape), form(of_form) {}
  uint64_t shape;
  uint64_t form;
  auto operator<=>(const StepKey&) const = default;
};

// A place in the work issued to a backend, for the host to wait for.
class WorkMark {
 public:
  virtual ~WorkMark() = default;
  virtual void Set() = 0;        // behind what has been issued so far
  virtual bool IsReached() = 0;  // also before the first Set
  virtual void WaitUntilReached() = 0;
};

}  // namespace lockstep
