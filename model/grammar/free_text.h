// Texts that say anything but: what stands around the parts of an output that a grammar is about.
//
// Any characters, of which control characters are line breaks and tabs alone: others have no token
// in many vocabularies. Pure functions, any thread.
#pragma once

#include <string_view>

#include "model/grammar/grammar.h"

namespace lockstep::grammar {

// Any text.
GrammarBuilder::Part FreeText(GrammarBuilder& builder);
// One character up to `last`, but none of these, which may be in any order.
GrammarBuilder::Part CharacterBut(std::u32string_view characters, GrammarBuilder& builder,
                                  char32_t last = 0x10FFFF);

// A text that ends with the marker and has it nowhere else. marker: ASCII, whose first character is
// nowhere else in it.
GrammarBuilder::Part FreeTextUpTo(std::string_view marker, GrammarBuilder& builder);
// A text without the marker, whose beginning it may end with.
GrammarBuilder::Part FreeTextWithout(std::string_view marker, GrammarBuilder& builder);

}  // namespace lockstep::grammar
