#include "model/tokenizer/bpe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "model/tokenizer/tokenizer_file.h"
#include "model/tokenizer/utf8.h"

namespace lockstep {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Make(const BpeSpec& spec, const Vocabulary& vocabulary) {
  Bpe bpe(vocabulary);
  bpe.ignore_merges_ = spec.ignore_merges;
  bpe.byte_fallback_ = spec.byte_fallback;
  bpe.fuse_unk_ = spec.fuse_unk;
  for (uint32_t c = 0; c < kNumCached; ++c) {
    std::string character;
    AppendCodePoint(c, character);
    bpe.character_ids_[c] = vocabulary.ModelId(character).value_or(-1);
  }
  RETURN_IF_ERROR(bpe.AddFallbacks(spec));
  RETURN_IF_ERROR(bpe.AddMerges(spec.merges));
  return bpe;
}

absl::Status Bpe::AddFallbacks(const BpeSpec& spec) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = vocabulary_->ModelId(absl::StrFormat("<0x%02X>", byte)).value_or(-1);
  }
  if (!spec.unk_token.has_value()) return absl::OkStatus();
  unk_id_ = vocabulary_->ModelId(*spec.unk_token);
  if (unk_id_.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: model: unk_token ",
                                                 Quote(*spec.unk_token), " is not in vocab"));
}

absl::Status Bpe::AddMerges(const std::vector<std::pair<std::string, std::string>>& merges) {
  merges_.reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    joined.assign(left).append(right);
    const auto left_id = vocabulary_->ModelId(left);
    const auto right_id = vocabulary_->ModelId(right);
    const auto joined_id = vocabulary_->ModelId(joined);
    if (!left_id || !right_id || !joined_id) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: merge ", rank, ", ",
                                                     Quote(left), " + ", Quote(right),
                                                     ": a part or the whole is not in vocab"));
    }
    merges_[PairKey(*left_id, *right_id)] = {static_cast<int32_t>(rank), *joined_id};
  }
  return absl::OkStatus();
}

std::optional<int32_t> Bpe::CharacterId(std::string_view character) const {
  if (character.size() > 2) return vocabulary_->ModelId(character);
  const uint32_t code_point = NextUtf8Unit(character).code_point;
  if (code_point >= kNumCached) return vocabulary_->ModelId(character);
  const int32_t id = character_ids_[code_point];
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

bool Bpe::AppendByteTokens(std::string_view character, std::vector<Symbol>& symbols) const {
  for (const char byte : character) {
    if (byte_ids_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : character) {
    symbols.push_back({byte_ids_[static_cast<uint8_t>(byte)], -1, -1});
  }
  return true;
}

// One symbol per character; an unknown character becomes its bytes or the unknown token, one for a
// whole run if fuse_unk. A run's token is appended where the run ends: HF's order, which differs
// from the text's when byte tokens (of an incomplete set) interrupt the run.
absl::Status Bpe::AppendSymbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  bool unk_pending = false;
  const auto flush_unk = [&] {
    if (unk_pending) symbols.push_back({*unk_id_, -1, -1});
    unk_pending = false;
  };
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, NextUtf8Unit(piece).num_bytes);
    piece.remove_prefix(character.size());
    if (const auto id = CharacterId(character); id.has_value()) {
      flush_unk();
      symbols.push_back({*id, -1, -1});
    } else if (byte_fallback_ && AppendByteTokens(character, symbols)) {
      continue;
    } else if (unk_id_.has_value()) {
      if (!fuse_unk_) flush_unk();
      unk_pending = true;
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the model's vocabulary cannot express U+%04X", NextUtf8Unit(character).code_point));
    }
  }
  flush_unk();
  return absl::OkStatus();
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto merge = merges_.find(PairKey(left, right));
  return merge == merges_.end() ? nullptr : &merge->second;
}

void Bpe::Link(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols_;
  scratch.heap_.clear();
  const int32_t last = static_cast<int32_t>(symbols.size()) - 1;
  for (int32_t i = 0; i <= last; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i < last ? i + 1 : -1;
    const Merge* merge = i < last ? FindMerge(symbols[i].id, symbols[i + 1].id) : nullptr;
    if (merge != nullptr) scratch.heap_.push_back({merge->rank, i, merge->id});
  }
  std::make_heap(scratch.heap_.begin(), scratch.heap_.end());
}

void Bpe::Offer(int32_t left, int32_t right, Scratch& scratch) const {
  if (left < 0 || right < 0) return;
  const Merge* merge = FindMerge(scratch.symbols_[left].id, scratch.symbols_[right].id);
  if (merge == nullptr) return;
  scratch.heap_.push_back({merge->rank, left, merge->id});
  std::push_heap(scratch.heap_.begin(), scratch.heap_.end());
}

void Bpe::JoinAll(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols_;
  std::vector<Candidate>& heap = scratch.heap_;
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& left = symbols[best.position];
    if (left.id < 0 || left.next < 0) continue;
    // The entry is stale if either half has been joined to something else since.
    Symbol& right = symbols[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    Offer(left.previous, best.position, scratch);
    Offer(best.position, left.next, scratch);
  }
}

absl::Status Bpe::Encode(std::string_view piece, Scratch& scratch,
                         std::vector<int32_t>& ids) const {
  if (piece.empty()) return absl::OkStatus();
  if (ignore_merges_) {
    if (const auto id = vocabulary_->ModelId(piece); id.has_value()) {
      ids.push_back(*id);
      return absl::OkStatus();
    }
  }
  scratch.symbols_.clear();
  RETURN_IF_ERROR(AppendSymbols(piece, scratch.symbols_));
  Link(scratch);
  JoinAll(scratch);
  for (const Symbol& symbol : scratch.symbols_) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
