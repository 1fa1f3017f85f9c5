// Which part of what an assistant writes is thought, and which its answer. Pure.
//
// Models that think mark it as model/grammar/thought.h has it. The line breaks around a thought are
// no part of either, as chat templates have it that write such a message again (Qwen3's,
// huggingface.co/Qwen/Qwen3-8B).
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

class ThoughtReader {
 public:
  // thought: what the text may begin with.
  explicit ThoughtReader(v1::Thought thought);

  // text: all of it so far, of which the one read before is the beginning; what is new is looked
  // at. has_ended: that is all.
  void Read(absl::string_view text, bool has_ended);

  // Of the text read last: what is sure to be one or the other, whatever comes.
  absl::string_view thought(absl::string_view text) const {
    return text.substr(thought_begin_, thought_end_ - thought_begin_);
  }
  absl::string_view answer(absl::string_view text) const { return text.substr(answer_begin_); }
  // How much of it is sure to come before the answer, markers among it.
  size_t num_before_answer() const { return at_ == At::kBegin ? 0 : answer_begin_; }

 private:
  // What the next byte belongs to; kBegin: not known yet.
  enum class At { kBegin, kBreakBefore, kThought, kBreakAfter, kAnswer };

  void ReadBegin(absl::string_view text, bool has_ended);
  void ReadThought(absl::string_view text, bool has_ended);

  At at_;
  size_t next_ = 0;  // where to look for what ends this part
  size_t thought_begin_ = 0;
  size_t thought_end_ = 0;
  size_t answer_begin_ = 0;
};

}  // namespace lockstep
