#include "model/grammar/token_masks.h"

#include <algorithm>
#include <limits>

namespace lockstep::grammar {
namespace {

void Set(TokenMask& mask, int32_t index) {
  mask[static_cast<size_t>(index) / 32] |= uint32_t{1} << (index % 32);
}

}  // namespace

MaskedVocabulary::MaskedVocabulary(TokenTexts texts, int32_t first, int32_t last,
                                   std::vector<int32_t> eos_token_ids)
    : texts_(std::move(texts)),
      first_(first),
      last_(last),
      eos_token_ids_(std::move(eos_token_ids)) {
  for (const int32_t num_characters : {PlainReach::kAnyNumber, kMostCounted, kMostCounted / 2, 0}) {
    slices_.push_back(SliceOf(num_characters));
  }
}

MaskedVocabulary::Slice MaskedVocabulary::SliceOf(int32_t num_characters) const {
  TokenMask plain = NoTokens();
  std::vector<int32_t> others;
  for (int32_t token = 0; token < texts_.size(); ++token) {
    if (texts_.of(token).empty()) continue;
    const std::optional<int32_t> length = CountPlainCharacters(texts_.of(token));
    if (length.has_value() && *length <= num_characters) {
      if (token >= first_ && token < last_) Set(plain, token - first_);
    } else {
      others.push_back(token);
    }
  }
  return {.num_characters = num_characters,
          .plain = std::move(plain),
          .others = TokenTrie(texts_, std::move(others))};
}

TokenMask MaskedVocabulary::NoTokens() const {
  return TokenMask(static_cast<size_t>(last_ - first_ + 31) / 32);
}

int32_t TokenMasks::MakeRoom(int32_t state) {
  if (!automaton_.is_full()) return state;
  ++epoch_;
  plain_reach_.Forget();
  masks_.clear();
  return automaton_.ClearBut(state);
}

int32_t TokenMasks::Read(int32_t state, std::string_view bytes) {
  for (const char byte : bytes) {
    state = automaton_.Next(MakeRoom(state), static_cast<uint8_t>(byte));
    if (state == TextAutomaton::kNoState) return state;
  }
  return state;
}

void TokenMasks::Find(Place& place) {
  if (place.epoch != epoch_) {
    place.state = place.saved.is_empty() ? automaton_.Start() : automaton_.Load(place.saved);
  }
  place.epoch = epoch_;
}

bool TokenMasks::Advance(Place& place, std::string_view bytes) {
  Find(place);
  const int32_t state = Read(place.state, bytes);
  if (state == TextAutomaton::kNoState) return false;
  place.saved = automaton_.Save(state);
  place.state = state;
  place.epoch = epoch_;
  return true;
}

void TokenMasks::AllowEnd(TokenMask& mask) const {
  for (const int32_t token : vocabulary_.eos_token_ids()) {
    const int64_t index = int64_t{token} - vocabulary_.first();
    if (index >= 0 && index < vocabulary_.size()) Set(mask, static_cast<int32_t>(index));
  }
}

std::shared_ptr<const TokenMask> TokenMasks::OnlyEnd() {
  if (only_end_ == nullptr) {
    TokenMask mask = vocabulary_.NoTokens();
    AllowEnd(mask);
    only_end_ = std::make_shared<const TokenMask>(std::move(mask));
  }
  return only_end_;
}

std::shared_ptr<const TokenMask> TokenMasks::Allowed(Place& place) {
  Find(place);
  const auto known = masks_.find(place.state);
  if (known != masks_.end()) return known->second;
  TokenMask mask = MaskOf(place.state);
  place.epoch = epoch_;
  if (automaton_.may_end(place.state)) AllowEnd(mask);
  ++num_masks_made_;
  if (std::ssize(masks_) * MaskBytes() >= kMaxMaskBytes) masks_.clear();
  return masks_[place.state] = std::make_shared<const TokenMask>(std::move(mask));
}

bool TokenMasks::HoldsMuch() const {
  constexpr int32_t kManyStates = 2048;
  constexpr int64_t kManyWays = 1 << 15;
  return automaton_.num_states() >= kManyStates || automaton_.num_ways() >= kManyWays ||
         std::ssize(masks_) * MaskBytes() >= kMaxMaskBytes / 2;
}

const MaskedVocabulary::Slice& TokenMasks::SliceFor(int32_t state) {
  const int32_t reach = plain_reach_.Of(automaton_, state, MaskedVocabulary::kMostCounted);
  return *std::find_if(vocabulary_.slices().begin(), vocabulary_.slices().end(),
                       [&](const auto& slice) { return slice.num_characters <= reach; });
}

TokenMask TokenMasks::MaskOf(int32_t& state) {
  state = MakeRoom(state);
  const MaskedVocabulary::Slice& slice = SliceFor(state);
  int64_t most_work = kMaxWalkWork / std::max(1, automaton_.num_ways(state) / kFewWays);
  for (const int32_t most_bytes : {slice.others.max_depth(), 8, 4, 2}) {
    state = MakeRoom(state);
    std::optional<TokenMask> mask = Walk(slice, state, most_bytes, most_work);
    if (mask.has_value()) return *std::move(mask);
    most_work /= 2;
  }
  return *Walk(slice, state, 1, std::numeric_limits<int64_t>::max());
}

// Goes down wherever the text goes on.
std::optional<TokenMask> TokenMasks::Walk(const MaskedVocabulary::Slice& slice, int32_t root,
                                          int32_t most_bytes, int64_t most_work) {
  TokenMask mask = slice.plain;
  const TokenTrie& trie = slice.others;
  const std::span<const TokenTrie::Node> nodes = trie.nodes();
  states_.assign(static_cast<size_t>(trie.max_depth()) + 1, root);
  ++walk_;
  int64_t work = 0;
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const int32_t from = states_[node.depth];
    const int32_t next = automaton_.Next(from, node.byte);
    const size_t step = automaton_.StepOf(from, node.byte);
    if (step >= walks_.size()) walks_.resize(step + 1);
    if (std::exchange(walks_[step], walk_) != walk_) work += kStepWork + automaton_.work_of(step);
    if (work > most_work) return std::nullopt;
    if (next == TextAutomaton::kNoState) {
      i = static_cast<size_t>(node.after);
      continue;
    }
    states_[node.depth + size_t{1}] = next;
    for (const int32_t token : trie.tokens(static_cast<int64_t>(i))) {
      const int64_t index = int64_t{token} - vocabulary_.first();
      if (index >= 0 && index < vocabulary_.size()) Set(mask, static_cast<int32_t>(index));
    }
    i = node.depth + 1 < most_bytes ? i + 1 : static_cast<size_t>(node.after);
  }
  return mask;
}

void OutputMatcher::Add(int32_t token) {
  allowed_.reset();
  if (has_ended_) return;
  const TokenTexts& texts = masks_->vocabulary().texts();
  const std::string_view text = token < texts.size() ? texts.of(token) : std::string_view();
  has_ended_ = text.empty() || !masks_->Advance(place_, text);
}

std::shared_ptr<const TokenMask> OutputMatcher::Allowed(std::span<const int32_t> more) {
  if (!more.empty()) {
    OutputMatcher later = *this;
    for (const int32_t token : more) later.Add(token);
    return later.Allowed();
  }
  if (allowed_ == nullptr) allowed_ = has_ended_ ? masks_->OnlyEnd() : masks_->Allowed(place_);
  return allowed_;
}

}  // namespace lockstep::grammar
