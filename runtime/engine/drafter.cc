#include "runtime/engine/drafter.h"

#include <algorithm>
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

}  // namespace

std::optional<Drafter::Place> Drafter::Find(const DraftSources& sources) {
  const auto& [prediction, tokens] = sources;
  if (tokens.empty()) return std::nullopt;
  const size_t end_of_prediction = prediction.empty() ? 0 : prediction.size() - 1;
  const Match predicted = LongestMatch(prediction, end_of_prediction, tokens);
  const Match written = LongestMatch(tokens, tokens.size() - 1, tokens);
  const bool is_in_prediction = predicted.length >= written.length;
  const Match& best = is_in_prediction ? predicted : written;
  if (best.length < kShortestMatch) return std::nullopt;
  return Place{is_in_prediction, best.end};
}

void Drafter::Follow(const DraftSources& sources) {
  const auto& [prediction, tokens] = sources;
  if (!std::exchange(has_begun_, true) && !prediction.empty()) place_ = Place{true, 0};
  for (; num_followed_ < tokens.size(); ++num_followed_) {
    if (pause_ > 0) --pause_;
    if (!place_) continue;
    const std::span<const int32_t> text = place_->is_in_prediction ? prediction : tokens;
    const bool came_true =
        place_->next < text.size() && text[place_->next] == tokens[num_followed_];
    if (came_true) {
      ++place_->next;
    } else {
      place_.reset();
    }
  }
  if (place_ && place_->is_in_prediction && place_->next == prediction.size()) place_.reset();
  if (!place_ && pause_ == 0) place_ = Find(sources);
}

// Where a place in the output comes to the output's end, what is proposed goes on with itself.
std::vector<int32_t> Drafter::Propose(const DraftSources& sources, int most) const {
  std::vector<int32_t> drafts;
  if (!is_ready()) return drafts;
  const auto& [prediction, tokens] = sources;
  const auto count = static_cast<size_t>(std::min(most, trusted_));
  for (size_t at = place_->next; drafts.size() < count; ++at) {
    if (place_->is_in_prediction) {
      if (at >= prediction.size()) break;
      drafts.push_back(prediction[at]);
    } else {
      drafts.push_back(at < tokens.size() ? tokens[at] : drafts[at - tokens.size()]);
    }
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
