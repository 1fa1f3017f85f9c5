// What models that think write before they answer: "<think>", a text, "</think>", and line breaks
// (DeepSeek-R1's and Qwen3's chat templates on huggingface.co). Some prompts end with the first of
// these, so that the thought has begun.
//
// Pure functions, any thread.
#pragma once

#include "model/grammar/grammar.h"

namespace lockstep::grammar {

inline constexpr char kThoughtBegin[] = "<think>";
inline constexpr char kThoughtEnd[] = "</think>";

// has_begun: without the first marker. Else all of it may also be absent. It ends with the first
// end marker, and some line breaks.
GrammarBuilder::Part AddThought(bool has_begun, GrammarBuilder& builder);

}  // namespace lockstep::grammar
