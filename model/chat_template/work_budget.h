// How much a template may do: one that loops for ever, or doubles a text, ends with an error.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::jinja {

// Of lists and dicts in each other that a template makes.
inline constexpr int kMaxValueDepth = 50;
// Of expressions and blocks in each other, through macros: each takes up to a kilobyte of the
// stack, four with AddressSanitizer.
inline constexpr int kMaxRunDepth = 600;

class WorkBudget {
 public:
  // A unit is a look at an expression, or at some 64 bytes of text.
  static constexpr int64_t kMaxUnits = 5'000'000;
  static constexpr size_t kBytesPerUnit = 64;
  static constexpr size_t kMaxTextBytes = size_t{1} << 26;

  absl::Status Take(int64_t units) {
    units_left_ -= units;
    if (units_left_ >= 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("it takes more than ", kMaxUnits, " steps"));
  }
  // For a text of that many bytes, made or read.
  absl::Status TakeText(size_t num_bytes) {
    if (num_bytes > kMaxTextBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a text would have ", num_bytes, " bytes, more than ", kMaxTextBytes));
    }
    return Take(1 + static_cast<int64_t>(num_bytes / kBytesPerUnit));
  }

  // Of so many values with one of that weight.
  absl::Status TakeComparisons(size_t count, size_t weight) {
    const size_t units = 1 + weight / kBytesPerUnit;
    return count > kMaxUnits / units ? Take(kMaxUnits)
                                     : Take(1 + static_cast<int64_t>(count * units));
  }

 private:
  int64_t units_left_ = kMaxUnits;
};

}  // namespace lockstep::jinja
