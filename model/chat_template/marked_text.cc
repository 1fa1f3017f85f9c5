#include "model/chat_template/marked_text.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace lockstep {

MarkedText::MarkedText(std::string text, bool is_markup) : text_(std::move(text)) {
  AppendRun(text_.size(), is_markup);
}

void MarkedText::AppendRun(size_t num_bytes, bool is_markup) {
  if (num_bytes == 0) return;
  if (!runs_.empty() && runs_.back().is_markup == is_markup) {
    runs_.back().num_bytes += num_bytes;
  } else {
    runs_.push_back({num_bytes, is_markup});
  }
}

void MarkedText::Append(const MarkedText& other) {
  if (&other == this) return Append(MarkedText(other));
  text_ += other.text_;
  for (const Run& run : other.runs_) AppendRun(run.num_bytes, run.is_markup);
}

MarkedText MarkedText::Range(size_t begin, size_t end) const {
  LS_CHECK(begin <= end && end <= text_.size());
  MarkedText part;
  part.text_ = text_.substr(begin, end - begin);
  size_t at = 0;
  for (const Run& run : runs_) {
    const size_t first = std::max(at, begin);
    at += run.num_bytes;
    if (const size_t last = std::min(at, end); last > first) {
      part.AppendRun(last - first, run.is_markup);
    }
  }
  return part;
}

MarkedText MarkedText::WithText(std::string text) const {
  LS_CHECK_EQ(text.size(), text_.size());
  MarkedText other = *this;
  other.text_ = std::move(text);
  return other;
}

std::vector<TextPiece> MarkedText::Pieces() const {
  std::vector<TextPiece> pieces;
  size_t at = 0;
  for (const Run& run : runs_) {
    pieces.push_back({text_.substr(at, run.num_bytes), run.is_markup});
    at += run.num_bytes;
  }
  return pieces;
}

}  // namespace lockstep
