#include "runtime/controller/killer_prompts.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

size_t HashOf(std::span<const int32_t> prompt) {
  return absl::HashOf(absl::Span<const int32_t>(prompt.data(), prompt.size()));
}

}  // namespace

std::deque<KillerPrompts::Killer>::const_iterator KillerPrompts::At(size_t prompt_hash) const {
  return std::find_if(killers_.begin(), killers_.end(), [prompt_hash](const Killer& killer) {
    return killer.prompt_hash == prompt_hash;
  });
}

void KillerPrompts::Add(std::span<const int32_t> prompt, absl::Time now) {
  Killer killer{HashOf(prompt), 1, now};
  if (const auto known = At(killer.prompt_hash); known != killers_.end()) {
    killer.num_times += known->num_times;
    killers_.erase(known);
  }
  killers_.push_back(killer);
  if (killers_.size() > kMost) killers_.pop_front();
}

std::optional<size_t> KillerPrompts::Find(std::span<const int32_t> prompt) const {
  if (killers_.empty()) return std::nullopt;
  const size_t hash = HashOf(prompt);
  if (At(hash) == killers_.end()) return std::nullopt;
  return hash;
}

void KillerPrompts::Forgive(size_t found) {
  if (const auto killer = At(found); killer != killers_.end()) killers_.erase(killer);
}

absl::Status KillerPrompts::Check(std::span<const int32_t> prompt, absl::Time now) const {
  const std::optional<size_t> found = Find(prompt);
  if (!found) return absl::OkStatus();
  const auto killer = At(*found);
  if (killer->num_times < 2) return absl::OkStatus();
  const absl::Duration left = killer->last + kRefusal - now;
  if (left <= absl::ZeroDuration()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("requests with this prompt killed their ranks ", killer->num_times,
                   " times: it is refused for ",
                   absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))), " more"));
}

}  // namespace lockstep
