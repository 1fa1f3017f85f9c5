// How much of the machine other programs took while this one and its children worked: what tells a
// disturbed measurement from a good one. Linux's /proc/stat; one thread.
#pragma once

namespace lockstep {

class OtherPrograms {
 public:
  OtherPrograms();
  // Of the processors' time since construction, 0 to 1; 0 where the system does not say. Children
  // count once they have been waited for.
  double Share() const;

 private:
  double busy_ = 0;  // seconds over all processors
  double own_ = 0;
  double wall_ = 0;
};

}  // namespace lockstep
