// Which tokens may come next in an output whose text is constrained: the automaton of the text, and
// for each of its states that tokens were chosen in a mask of those that go on from there.
//
// Outputs with the same constraint share what is found. Used by the step loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "model/grammar/plain_text.h"
#include "model/grammar/text_automaton.h"
#include "model/grammar/token_trie.h"

namespace lockstep::grammar {

// Bit i % 32 of word i / 32 is that of token `first + i`. At least one token of the whole
// vocabulary is allowed, so of a part perhaps none.
using TokenMask = std::vector<uint32_t>;

// A rank's part of the vocabulary, and the texts of all of it. Immutable.
class MaskedVocabulary {
 public:
  // Tokens [first, last).
  MaskedVocabulary(TokenTexts texts, int32_t first, int32_t last,
                   std::vector<int32_t> eos_token_ids);

  // Tokens that go together where so many plain characters may follow (plain_text.h), and those
  // that do not.
  struct Slice {
    int32_t num_characters = 0;
    TokenMask plain;
    TokenTrie others;  // of the whole vocabulary, so that walks are the same on all ranks
  };
  // The last, with nothing plain, is for all states; those before have less and less.
  std::span<const Slice> slices() const { return slices_; }
  static constexpr int32_t kMostCounted = 16;  // plain characters, where there is an end to them

  const TokenTexts& texts() const { return texts_; }
  int32_t first() const { return first_; }
  int32_t size() const { return last_ - first_; }
  std::span<const int32_t> eos_token_ids() const { return eos_token_ids_; }
  TokenMask NoTokens() const;

 private:
  Slice SliceOf(int32_t num_characters) const;

  const TokenTexts texts_;
  const int32_t first_;
  const int32_t last_;
  const std::vector<int32_t> eos_token_ids_;
  std::vector<Slice> slices_;
};

class TokenMasks {
 public:
  static constexpr int64_t kMaxMaskBytes = 8 << 20;  // that are kept for states to come back to

  // vocabulary must outlive it.
  TokenMasks(Grammar grammar, const MaskedVocabulary& vocabulary, int32_t max_states = 8192)
      : vocabulary_(vocabulary), automaton_(std::move(grammar), max_states) {}

  // Where a text has come to. The state's number is for as long as none are forgotten.
  struct Place {
    TextAutomaton::SavedState saved;
    int32_t state = TextAutomaton::kNoState;
    uint64_t epoch = 0;  // that the state is of; 0: none
  };
  // False, and the place stays: no text goes on so.
  bool Advance(Place& place, std::string_view bytes);
  // What may come next; end-of-text tokens where the text may end. Where too many texts would have
  // to be told apart, of tokens only short ones: fewer texts, as with TextAutomaton::kMaxWays.
  std::shared_ptr<const TokenMask> Allowed(Place& place);
  std::shared_ptr<const TokenMask> OnlyEnd();

  // Some megabytes at least, which few constraints come to.
  bool HoldsMuch() const;

  const MaskedVocabulary& vocabulary() const { return vocabulary_; }
  int64_t num_masks_made() const { return num_masks_made_; }

 private:
  // Of the first walk from a state: what the automaton has looked at, each step once, and for each
  // step besides. Walks after it, of shorter tokens, may take half as much as the one before. A
  // state of n ways, n above kFewWays, has the n / kFewWays-th part: where texts stay many, as
  // those of few constraints do, every token of every output takes a walk.
  static constexpr int64_t kMaxWalkWork = 1 << 18;
  static constexpr int32_t kFewWays = 8;
  static constexpr int64_t kStepWork = 64;

  // Goes on from the state; makes room where there is none.
  int32_t Read(int32_t state, std::string_view bytes);
  void Find(Place& place);
  int32_t MakeRoom(int32_t state);
  const MaskedVocabulary::Slice& SliceFor(int32_t state);
  // Of a state that takes too much work, with short tokens only. Which ones depends on the text
  // alone. The state's number changes where states are forgotten.
  TokenMask MaskOf(int32_t& state);
  // nullopt: there is too much work.
  std::optional<TokenMask> Walk(const MaskedVocabulary::Slice& slice, int32_t root,
                                int32_t most_bytes, int64_t most_work);
  void AllowEnd(TokenMask& mask) const;
  int64_t MaskBytes() const { return (vocabulary_.size() + 31) / 32 * int64_t{sizeof(uint32_t)}; }

  const MaskedVocabulary& vocabulary_;
  TextAutomaton automaton_;
  PlainReach plain_reach_;
  uint64_t epoch_ = 1;  // rises when states are forgotten
  absl::flat_hash_map<int32_t, std::shared_ptr<const TokenMask>> masks_;  // by state
  std::shared_ptr<const TokenMask> only_end_;
  int64_t num_masks_made_ = 0;
  // Of Walk.
  std::vector<int32_t> states_;  // [depth]
  std::vector<uint32_t> walks_;  // that met the automaton's steps last
  uint32_t walk_ = 0;
};

// One output's text, token by token.
class OutputMatcher {
 public:
  explicit OutputMatcher(std::shared_ptr<TokenMasks> masks) : masks_(std::move(masks)) {}

  // A token that does not fit, of which there are none but after failures of others, ends the text,
  // as end-of-text tokens do.
  void Add(int32_t token);
  // After the tokens added, or after these as well, which are not kept.
  std::shared_ptr<const TokenMask> Allowed(std::span<const int32_t> more = {});

 private:
  std::shared_ptr<TokenMasks> masks_;  // of all outputs with the same constraint
  TokenMasks::Place place_;
  bool has_ended_ = false;
  std::shared_ptr<const TokenMask> allowed_;  // null: not asked for yet
};

}  // namespace lockstep::grammar
