// Markers in a text that comes in pieces. Pure.
#pragma once

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace lockstep {

// How many bytes at the text's end may be the beginning of the marker, which is not empty.
inline size_t NumBegun(absl::string_view text, absl::string_view marker) {
  size_t size = std::min(text.size(), marker.size() - 1);
  while (size > 0 && !absl::EndsWith(text, marker.substr(0, size))) --size;
  return size;
}

}  // namespace lockstep
