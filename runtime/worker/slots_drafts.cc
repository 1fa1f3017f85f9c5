// SlotTable: entries with drafts, and what plans tell of them later.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "runtime/worker/slots.h"

namespace lockstep {

absl::Status SlotTable::CheckSettled(const engine::SettledTokens& settled) const {
  if (settled.slot >= slots_.size() || !slots_[settled.slot].open) {
    return Invalid(settled.slot, "told what it has chosen, but it is not open");
  }
  const std::vector<int32_t>& drafts = slots_[settled.slot].drafts;
  const std::span<const int32_t> tokens(settled.tokens);
  if (drafts.empty()) return Invalid(settled.slot, "told what it has chosen, but had no drafts");
  if (tokens.empty() || tokens.size() > drafts.size() + 1) {
    return Invalid(settled.slot, absl::StrCat("told ", tokens.size(), " chosen tokens, there were ",
                                              drafts.size(), " drafts"));
  }
  const auto accepted = tokens.first(tokens.size() - 1);
  if (!std::equal(accepted.begin(), accepted.end(), drafts.begin())) {
    return Invalid(settled.slot, "told chosen tokens that are not its drafts");
  }
  return CheckTokens(settled.slot, tokens.last(1));
}

absl::Status SlotTable::Settle(const engine::SettledTokens& settled) {
  RETURN_IF_ERROR(CheckSettled(settled));
  Slot& slot = slots_[settled.slot];
  const int64_t num_tokens = std::ssize(settled.tokens);
  slot.num_known_tokens += num_tokens;
  slot.num_computed_tokens += num_tokens - 1;
  slot.drafts.clear();
  slot.source = -1;
  slot.sampled_step = 0;
  slot.last_token = settled.tokens.back();
  if (options_.has_token_table) return absl::OkStatus();
  for (const int32_t token : settled.tokens) AddToken(slot, token);
  return absl::OkStatus();
}

absl::Status SlotTable::CheckDrafts(const engine::SlotWork& work) const {
  if (work.num_sampled() > std::ssize(slots_) - std::ssize(sampled_)) {
    return Invalid(work.slot, absl::StrCat("with ", work.num_sampled(), " tokens to choose beside ",
                                           sampled_.size(), " the step exceeds ", slots_.size()));
  }
  if (work.drafts.empty()) return absl::OkStatus();
  if (work.num_tokens != 1 || !work.sample) {
    return Invalid(work.slot, absl::StrCat(work.drafts.size(), " drafts after ", work.num_tokens,
                                           " tokens that are no decode"));
  }
  return CheckTokens(work.slot, work.drafts);
}

}  // namespace lockstep
