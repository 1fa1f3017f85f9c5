#include "runtime/engine/output_history.h"

#include <algorithm>

namespace lockstep::engine {

void OutputHistory::Add(const std::string& tenant, std::span<const int32_t> output) {
  if (output.empty()) return;
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) {
    if (tenants_.size() == kMaxTenants) {
      tenants_.erase(by_use_.back());
      by_use_.pop_back();
    }
    by_use_.push_front(tenant);
    tenants_[tenant] = {.tokens = {}, .first_place = next_place_, .used = by_use_.begin()};
    // Of any tenant: one that comes back begins behind all that was there before.
    next_place_ += uint64_t{1} << 40;
  } else {
    by_use_.splice(by_use_.begin(), by_use_, found->second.used);
  }
  Tenant& own = tenants_[tenant];
  const auto kept = output.first(std::min(output.size(), kMaxOutputTokens));
  own.tokens.insert(own.tokens.end(), kept.begin(), kept.end());
  own.tokens.push_back(kEndOfOutput);
  if (own.tokens.size() < 2 * kMaxTokens) return;
  const size_t num_forgotten = own.tokens.size() - kMaxTokens;
  own.tokens.erase(own.tokens.begin(), own.tokens.begin() + static_cast<ptrdiff_t>(num_forgotten));
  own.first_place += num_forgotten;
}

HistoryView OutputHistory::Of(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return {};
  return {.tokens = found->second.tokens, .first_place = found->second.first_place};
}

}  // namespace lockstep::engine
