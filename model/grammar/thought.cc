#include "model/grammar/thought.h"

#include "model/grammar/free_text.h"

namespace lockstep::grammar {

GrammarBuilder::Part AddThought(bool has_begun, GrammarBuilder& builder) {
  constexpr int kMostBreaksAfter = 4;
  const GrammarBuilder::Part rest =
      builder.Sequence({FreeTextUpTo(kThoughtEnd, builder),
                        builder.Repeat(builder.Text("\n"), 0, kMostBreaksAfter)});
  if (has_begun) return rest;
  return builder.Optional(builder.Sequence({builder.Text(kThoughtBegin), rest}));
}

}  // namespace lockstep::grammar
