// Whether what a replica says of a step fits the plan of it: checked whole before any of it counts.
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "runtime/engine/engine.h"

namespace lockstep::engine {
namespace {

absl::Status DoesNotFit(absl::string_view what, int64_t value, absl::string_view limit_name,
                        int64_t limit) {
  return absl::InternalError(absl::StrCat("step result: ", what, " ", value,
                                          " does not fit the plan, ", limit_name, " ", limit));
}

}  // namespace

absl::Status Engine::CheckResult(const StepResult& result) const {
  if (in_flight_.empty()) return DoesNotFit("step", result.step_id, "steps in flight:", 0);
  const StepInFlight& step = in_flight_.front();
  if (result.step_id != step.step_id) {
    return DoesNotFit("step", result.step_id, "the oldest step in flight is", step.step_id);
  }
  int64_t wanted = 0;
  for (const Scheduler::Entry& entry : step.entries) {
    if (!entry.sample) continue;
    const int64_t end = wanted + 1 + std::ssize(entry.drafts);
    for (; wanted < end && wanted < std::ssize(result.sampled); ++wanted) {
      RETURN_IF_ERROR(CheckSampled(result.sampled[wanted], entry.slot));
    }
    wanted = end;
  }
  if (wanted != std::ssize(result.sampled)) {
    return DoesNotFit("number of tokens", result.sampled.size(), "expected", wanted);
  }
  for (const PromptLogprobs& given : result.prompt_logprobs) {
    RETURN_IF_ERROR(CheckPromptLogprobs(given));
  }
  return absl::OkStatus();
}

absl::Status Engine::CheckSampled(const SampledToken& sampled, uint32_t slot) const {
  if (sampled.slot != slot) {
    return DoesNotFit("a token for slot", sampled.slot, "expected slot", slot);
  }
  const bool is_known = config_.vocab_size == 0 || sampled.token < config_.vocab_size;
  if (sampled.token == kNoToken || (sampled.token >= 0 && is_known)) return absl::OkStatus();
  return DoesNotFit("token id", sampled.token, "vocabulary size", config_.vocab_size);
}

// The logits at a position tell of the token after it.
absl::Status Engine::CheckPromptLogprobs(const PromptLogprobs& given) const {
  const Scheduler::Entry* entry = EntryOfSlot(given.slot);
  if (entry == nullptr)
    return DoesNotFit("prompt logprobs for slot", given.slot, "step", in_flight_.front().step_id);
  const Sequence& sequence = *entry->sequence;
  const int64_t first = given.first_position;
  const int64_t end = first + static_cast<int64_t>(given.logprobs.size());
  if (first <= entry->start) {
    return DoesNotFit("prompt logprobs from position", first, "it begins after", entry->start);
  }
  const int64_t num_prompt_tokens = sequence.request.given.prompt.size();
  const int64_t limit = std::min(entry->start + entry->num_tokens + 1, num_prompt_tokens);
  if (end > limit) return DoesNotFit("prompt logprobs up to position", end, "it ends at", limit);
  const int64_t next = sequence.num_prompt_logprobs_delivered + 1;
  const bool dropped = sequence.state == Sequence::State::kFinished;
  if (!dropped && sequence.wants_prompt_logprobs() && first > next) {
    return DoesNotFit("prompt logprobs from position", first, "the next one is", next);
  }
  return absl::OkStatus();
}

}  // namespace lockstep::engine
