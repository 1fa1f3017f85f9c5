#include "model/grammar/constraint_cache.h"

#include <algorithm>

#include "kernels/base/status_macros.h"
#include "model/grammar/constraint.h"

namespace lockstep::grammar {

absl::StatusOr<std::shared_ptr<TokenMasks>> ConstraintCache::Get(
    const OutputConstraint& constraint) {
  ++num_uses_;
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.constraint == constraint;
  });
  if (known != entries_.end()) {
    known->last_use = num_uses_;
    return known->masks;
  }
  ASSIGN_OR_RETURN(const MaskedVocabulary* vocabulary, vocabulary_());
  ASSIGN_OR_RETURN(Grammar grammar, CompileConstraint(constraint));
  DropIdle();
  auto masks = std::make_shared<TokenMasks>(std::move(grammar), *vocabulary);
  entries_.push_back({.constraint = constraint, .masks = masks, .last_use = num_uses_});
  return masks;
}

void ConstraintCache::DropIdle() {
  const auto is_idle = [](const Entry& entry) { return entry.masks.use_count() == 1; };
  std::erase_if(entries_,
                [&](const Entry& entry) { return is_idle(entry) && entry.masks->HoldsMuch(); });
  auto num_idle = static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), is_idle));
  for (; num_idle >= kMaxIdle; --num_idle) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!is_idle(*entry)) continue;
      if (oldest == entries_.end() || entry->last_use < oldest->last_use) oldest = entry;
    }
    entries_.erase(oldest);
  }
}

}  // namespace lockstep::grammar
