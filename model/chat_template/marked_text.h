// Text that knows of each of its bytes who wrote it: a chat template (markup, in which special
// tokens are meant) or its input (text, whatever it looks like). A value; well-formed UTF-8 as
// long as what it is made of is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/text_piece.h"

namespace lockstep {

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string text, bool is_markup);

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }  // bytes
  void Append(const MarkedText& other);
  // Bytes [begin, end), both within the text.
  MarkedText Range(size_t begin, size_t end) const;
  // Of the same number of bytes, with the same marks.
  MarkedText WithText(std::string text) const;
  // Neighbours that are marked alike are one piece; none is empty.
  std::vector<TextPiece> Pieces() const;

 private:
  struct Run {
    size_t num_bytes;
    bool is_markup;
  };
  void AppendRun(size_t num_bytes, bool is_markup);

  std::string text_;
  std::vector<Run> runs_;
};

}  // namespace lockstep
