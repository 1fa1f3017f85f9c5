// The stages between text and BPE: the normalizer rewrites the text, the pre-tokenizer cuts it into
// pieces that merges never cross. Immutable, safe from many threads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/regex_splitter.h"
#include "model/tokenizer/tokenizer_spec.h"

namespace lockstep {

// Empty text stays empty. INVALID_ARGUMENT if the result exceeds kMaxNormalizedBytes.
absl::StatusOr<std::string> Normalize(std::string_view text,
                                      const std::vector<NormalizerStep>& steps);

inline constexpr size_t kMaxNormalizedBytes = size_t{1} << 28;

class PreTokenizer {
 public:
  static absl::StatusOr<PreTokenizer> Make(std::vector<PreTokenizerStep> steps);

  // Gives the sink the pieces of `text` (valid UTF-8) in order. at_start: the text opens the input,
  // which Metaspace's prepend_scheme "first" asks for.
  absl::Status Split(std::string_view text, bool at_start, PieceSink sink) const {
    return Run(0, text, at_start, sink);
  }

 private:
  struct Stage {
    PreTokenizerStep step;
    std::optional<RegexSplitter> regex;
  };
  // Applies stages_[stage] to the text and the later ones to each resulting piece, depth first: no
  // list of pieces is ever held.
  absl::Status Run(size_t stage, std::string_view text, bool at_start, PieceSink sink) const;
  absl::Status RunByteLevel(size_t stage, std::string_view text, PieceSink next) const;
  absl::Status RunMetaspace(size_t stage, std::string_view text, bool at_start,
                            PieceSink next) const;

  std::vector<Stage> stages_;
};

}  // namespace lockstep
