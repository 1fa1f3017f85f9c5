#include "runtime/controller/killer_prompts.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace lockstep {
namespace {

size_t HashOf(std::span<const int32_t> prompt) {
  return absl::HashOf(absl::Span<const int32_t>(prompt.data(), prompt.size()));
}

}  // namespace

void KillerPrompts::Add(std::span<const int32_t> prompt, absl::Time now) {
  Killer killer{HashOf(prompt), 1, now};
  for (auto known = killers_.begin(); known != killers_.end(); ++known) {
    if (known->prompt_hash != killer.prompt_hash) continue;
    killer.num_times += known->num_times;
    killers_.erase(known);
    break;
  }
  killers_.push_back(killer);
  if (killers_.size() > kMost) killers_.pop_front();
}

const KillerPrompts::Killer* KillerPrompts::Find(std::span<const int32_t> prompt) const {
  if (killers_.empty()) return nullptr;
  const size_t hash = HashOf(prompt);
  for (const Killer& killer : killers_) {
    if (killer.prompt_hash == hash) return &killer;
  }
  return nullptr;
}

absl::Status KillerPrompts::Check(std::span<const int32_t> prompt, absl::Time now) const {
  const Killer* killer = Find(prompt);
  if (killer == nullptr || killer->num_times < 2) return absl::OkStatus();
  const absl::Duration left = killer->last + kRefusal - now;
  if (left <= absl::ZeroDuration()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("requests with this prompt killed their ranks ", killer->num_times,
                   " times: it is refused for ",
                   absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))), " more"));
}

}  // namespace lockstep
