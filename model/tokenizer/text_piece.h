// A part of a text, and who wrote it: markup, in which special tokens are meant, or what somebody
// said, which is text whatever it looks like.
#pragma once

#include <string>

namespace lockstep {

struct TextPiece {
  std::string text;
  bool is_markup = false;
};

}  // namespace lockstep
