// Cuts text at the matches of a tokenizer.json regular expression: every match is a piece and so is
// every gap between matches ("Isolated"). Immutable, safe to use from many threads.
//
// The files mean Oniguruma's dialect (or Rust's), we run PCRE2. Where the two differ the pattern is
// rewritten (\s and \S become Unicode White_Space, spelled out: PCRE2's \s also takes U+180E) or
// refused by name (\w, \h, \b, nested classes, ...). \p{...} follows the Unicode version of the
// PCRE2 at hand (14.0 for 10.42), so characters assigned later count as unassigned.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lockstep {

using PieceSink = absl::FunctionRef<absl::Status(std::string_view piece)>;

class RegexSplitter {
 public:
  // INVALID_ARGUMENT: malformed, or outside of what both dialects read alike.
  static absl::StatusOr<RegexSplitter> Compile(std::string_view pattern);
  RegexSplitter(RegexSplitter&&) noexcept;
  RegexSplitter& operator=(RegexSplitter&&) noexcept;
  ~RegexSplitter();

  // `text` is valid UTF-8; the pieces are not empty and cover it in order. Stops at the sink's
  // first error. RESOURCE_EXHAUSTED if matching takes more than a fixed multiple of the text's
  // length in steps: then the pattern is one that backtracks without bound.
  absl::Status Split(std::string_view text, PieceSink sink) const;

 private:
  struct Code;
  explicit RegexSplitter(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// The PCRE2 pattern that means what Oniguruma reads in `pattern`.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern);

}  // namespace lockstep
