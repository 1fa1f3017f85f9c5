// What each token contributes to decoded text. Decoding is: join the tokens' bytes, repair what is
// no UTF-8, drop leading strip characters; so it can run token by token. Immutable.
//
// One deliberate difference from HF: its ByteFallback turns a whole run of byte tokens that is not
// valid UTF-8 into one U+FFFD per byte, valid characters included, which would take back text
// already streamed. Here, as in byte-level decoding, only the invalid parts of a run are replaced.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/vocabulary.h"

namespace lockstep {

class TokenDecoder {
 public:
  // vocabulary must outlive it. INVALID_ARGUMENT if its replacements blow the tokens up.
  static absl::StatusOr<TokenDecoder> Make(DecoderSpec spec, const Vocabulary& vocabulary);

  // Bytes of a valid id; they may be a part of a character.
  std::string_view Bytes(int32_t id) const {
    return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  // ... where it is the text's first token.
  std::string FirstBytes(int32_t id) const;

  // How many strip characters a text's start may lose.
  size_t strip_start() const { return spec_.strip_start; }
  // Removes up to `budget` of them from `text`, whole characters that go on where the text so far
  // ended, and takes them off the budget; any other character ends the stripping.
  void StripStart(std::string& text, size_t& budget) const;

 private:
  TokenDecoder(DecoderSpec spec, const Vocabulary& vocabulary)
      : spec_(std::move(spec)), vocabulary_(&vocabulary) {}
  std::string BytesOf(const std::string& content) const;

  DecoderSpec spec_;
  const Vocabulary* vocabulary_;
  std::string bytes_;              // of all tokens, one after another
  std::vector<uint64_t> offsets_;  // [vocabulary size + 1] into bytes_
};

}  // namespace lockstep
