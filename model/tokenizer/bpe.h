// Byte-pair encoding of one piece of text: repeatedly joins the adjacent pair whose merge stands
// first in the list, leftmost first. Same result as HF tokenizers' models/bpe/word.rs, whose queue
// over a linked list this follows: O(n log n) for n characters. Immutable, safe from many threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/vocabulary.h"

namespace lockstep {

class Bpe {
 public:
  // vocabulary must outlive it. INVALID_ARGUMENT for a merge whose parts or whole are no tokens.
  static absl::StatusOr<Bpe> Make(const BpeSpec& spec, const Vocabulary& vocabulary);

  // Buffers that calls reuse; one per thread.
  class Scratch;

  // Appends the ids of `piece` (valid UTF-8, under 2^30 bytes). INVALID_ARGUMENT naming a character
  // that the vocabulary cannot express (HF drops it silently, which would alter a user's text).
  absl::Status Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank;  // position in the list
    int32_t id;    // of the joined token
  };
  struct Symbol {
    int32_t id;              // -1 once joined to its left neighbour
    int32_t previous, next;  // -1 at the ends
  };
  struct Candidate {
    int32_t rank, position, id;
    // std heaps keep the largest first: the candidate to take is the "largest".
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };

  explicit Bpe(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}
  absl::Status AddMerges(const std::vector<std::pair<std::string, std::string>>& merges);
  absl::Status AddFallbacks(const BpeSpec& spec);
  std::optional<int32_t> CharacterId(std::string_view character) const;
  absl::Status AppendSymbols(std::string_view piece, std::vector<Symbol>& symbols) const;
  bool AppendByteTokens(std::string_view character, std::vector<Symbol>& symbols) const;
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void Link(Scratch& scratch) const;  // the list, and the heap of its first candidates
  void Offer(int32_t left, int32_t right, Scratch& scratch) const;
  void JoinAll(Scratch& scratch) const;

  static constexpr size_t kNumCached = 0x200;  // covers byte-level BPE's alphabet

  const Vocabulary* vocabulary_;
  absl::flat_hash_map<uint64_t, Merge> merges_;    // (left id << 32 | right id) -> merge
  std::array<int32_t, kNumCached> character_ids_;  // by code point; -1: no token
  std::array<int32_t, 256> byte_ids_;              // <0x00>..<0xFF>; -1: no token
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool fuse_unk_ = false;
  std::optional<int32_t> unk_id_;
};

class Bpe::Scratch {
 private:
  friend class Bpe;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace lockstep
