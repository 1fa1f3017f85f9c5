// Which bytes of a text are markup: there special tokens are meant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace lockstep {

class MarkupRanges {
 public:
  static MarkupRanges None() { return {}; }
  static MarkupRanges All() {
    MarkupRanges all;
    all.Add(0, std::numeric_limits<size_t>::max());
    return all;
  }

  // In the order of the text; one that begins where the last one ends goes on with it.
  void Add(size_t begin, size_t end) {
    if (!ranges_.empty() && ranges_.back().end == begin) {
      ranges_.back().end = end;
    } else {
      ranges_.push_back({begin, end});
    }
  }
  bool empty() const { return ranges_.empty(); }
  // Whether [begin, end) is markup from one end to the other, or somewhere.
  bool Covers(size_t begin, size_t end) const {
    const auto range = FirstEndingAfter(begin);
    return range != ranges_.end() && range->begin <= begin && end <= range->end;
  }
  bool Overlaps(size_t begin, size_t end) const {
    const auto range = FirstEndingAfter(begin);
    return range != ranges_.end() && range->begin < end;
  }

 private:
  struct Range {
    size_t begin, end;
  };
  std::vector<Range>::const_iterator FirstEndingAfter(size_t at) const {
    return std::upper_bound(ranges_.begin(), ranges_.end(), at,
                            [](size_t value, const Range& range) { return value < range.end; });
  }
  std::vector<Range> ranges_;
};

}  // namespace lockstep
