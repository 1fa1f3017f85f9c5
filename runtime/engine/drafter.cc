#include "runtime/engine/drafter.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lockstep::engine {
namespace {

constexpr int kMostTrusted = 1 << 10;
constexpr int kLongestPauseLog2 = 6;

// How many tokens before text[end] are the last ones of `tokens`; at most kLongestMatch count.
size_t MatchBefore(std::span<const int32_t> text, size_t end, std::span<const int32_t> tokens) {
  const size_t most = std::min({end, tokens.size(), Drafter::kLongestMatch});
  size_t length = 0;
  while (length < most && text[end - 1 - length] == tokens[tokens.size() - 1 - length]) ++length;
  return length;
}

struct Match {
  size_t end = 0;
  size_t length = 0;
};

// The longest one before text[last_end], of equal ones the last: what is near is likelier said
// again.
Match LongestMatch(std::span<const int32_t> text, size_t last_end,
                   std::span<const int32_t> tokens) {
  Match best;
  const size_t first = last_end - std::min(last_end, Drafter::kLongestWalk);
  for (size_t end = last_end; end > first && best.length < Drafter::kLongestMatch; --end) {
    if (text[end - 1] != tokens.back()) continue;
    const size_t length = MatchBefore(text, end, tokens);
    if (length > best.length) best = {end, length};
  }
  return best;
}

// It begins with one that can be proposed.
bool IsToken(std::span<const int32_t> text) {
  return !text.empty() && text.front() != OutputHistory::kEndOfOutput;
}

}  // namespace

std::span<const int32_t> Drafter::TextFrom(const DraftSources& sources, const Place& place) {
  const bool is_in_history = place.source == Source::kHistory;
  const std::span<const int32_t> text = is_in_history ? sources.history.tokens
                                        : place.source == Source::kPrediction ? sources.prediction
                                                                              : sources.tokens;
  const uint64_t first = is_in_history ? sources.history.first_place : 0;
  if (place.next < first || place.next - first >= text.size()) return {};
  return text.subspan(place.next - first);
}

std::optional<Drafter::Place> Drafter::Find(const DraftSources& sources) {
  const auto& [prediction, tokens, history] = sources;
  if (tokens.empty()) return std::nullopt;
  const std::tuple<Source, std::span<const int32_t>, uint64_t> texts[] = {
      {Source::kPrediction, prediction, 0},
      {Source::kTokens, tokens, 0},
      {Source::kHistory, history.tokens, history.first_place}};
  std::optional<Place> place;
  size_t best = kShortestMatch - 1;
  for (const auto& [source, text, first_place] : texts) {
    if (text.empty()) continue;
    const Match match = LongestMatch(text, text.size() - 1, tokens);
    if (match.length <= best) continue;
    best = match.length;
    place = Place{source, first_place + match.end};
  }
  return place;
}

void Drafter::Follow(const DraftSources& sources) {
  const auto& [prediction, tokens, history] = sources;
  if (has_begun_ && num_followed_ == tokens.size()) return;
  if (!std::exchange(has_begun_, true) && !prediction.empty()) {
    place_ = Place{Source::kPrediction, 0};
  }
  for (; num_followed_ < tokens.size(); ++num_followed_) {
    if (pause_ > 0) --pause_;
    if (!place_) continue;
    const std::span<const int32_t> text = TextFrom(sources, *place_);
    if (!text.empty() && text.front() == tokens[num_followed_]) {
      ++place_->next;
    } else {
      place_.reset();
    }
  }
  if (place_ && !IsToken(TextFrom(sources, *place_))) place_.reset();
  if (!place_ && pause_ == 0) Look(sources);
}

void Drafter::Look(const DraftSources& sources) {
  place_ = Find(sources);
  if (place_ && !IsToken(TextFrom(sources, *place_))) place_.reset();
  num_walks_in_vain_ = place_ ? 0 : num_walks_in_vain_ + 1;
  pause_ = std::min(num_walks_in_vain_, kLongestRest);
}

// Where a place in the output comes to the output's end, what is proposed goes on with itself.
std::vector<int32_t> Drafter::Propose(const DraftSources& sources, int most) const {
  std::vector<int32_t> drafts;
  if (!is_ready()) return drafts;
  const std::span<const int32_t> text = TextFrom(sources, *place_);
  const auto count = static_cast<size_t>(std::min(most, trusted_));
  for (size_t at = 0; drafts.size() < count; ++at) {
    if (at == text.size() && place_->source != Source::kTokens) break;
    const int32_t token = at < text.size() ? text[at] : drafts[at - text.size()];
    if (token == OutputHistory::kEndOfOutput) break;
    drafts.push_back(token);
  }
  return drafts;
}

void Drafter::Learn(int num_drafts, int num_accepted) {
  if (num_accepted == num_drafts) {
    trusted_ = std::min(2 * std::max(trusted_, num_drafts), kMostTrusted);
  } else {
    trusted_ = num_accepted + 1;
  }
  if (num_accepted > 0) {
    num_misses_ = 0;
    return;
  }
  num_misses_ = std::min(num_misses_ + 1, kLongestPauseLog2);
  pause_ = size_t{1} << num_misses_;
}

}  // namespace lockstep::engine
