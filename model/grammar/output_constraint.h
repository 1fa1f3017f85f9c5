// What the text of an output must be from its first byte to its last, as it was asked for.
#pragma once

#include <cstddef>
#include <string>

namespace lockstep {

struct OutputConstraint {
  enum class Kind {
    kNone,
    kJsonSchema,  // JSON that is valid against the schema that `text` is
    kRegex,       // a match of `text`, from end to end
    kChoices,     // one of the strings in the JSON array that `text` is
    kToolCalls,   // calls of functions, of which `text` is TextOf (model/grammar/tool_calls.h)
  };
  // What may come before all of it, as models write that think (model/grammar/thought.h).
  enum class Thought {
    kNone,
    kAllowed,  // a thought, or none
    kBegun,    // the rest of a thought that the prompt has begun
  };
  static constexpr size_t kMaxTextBytes = 64 << 10;

  Kind kind = Kind::kNone;
  std::string text;
  Thought thought = Thought::kNone;

  bool operator==(const OutputConstraint&) const = default;
};

}  // namespace lockstep
