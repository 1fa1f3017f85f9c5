#include "parallel/token_split.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace lockstep {

TokenSplit Undivided(int64_t num_tokens) {
  return {.num_tokens = num_tokens, .share = num_tokens, .mine = {0, num_tokens}};
}

TokenSplit Divided(int64_t num_tokens, int tp, int tp_rank) {
  LS_CHECK(num_tokens >= 0 && tp_rank >= 0 && tp_rank < tp);
  const int64_t share = (num_tokens + tp - 1) / tp;
  const int64_t begin = tp_rank * share;
  return {.num_tokens = num_tokens,
          .share = share,
          .num_shares = tp,
          .mine = {begin, std::clamp(begin + share, begin, std::max(begin, num_tokens))}};
}

TokenSplit SplitTokens(const RankGroups& groups, int64_t num_tokens, int64_t hidden) {
  const int64_t bytes = num_tokens * hidden * static_cast<int64_t>(sizeof(float));
  if (groups.tp->size() == 1 || bytes <= groups.most_undivided_bytes) return Undivided(num_tokens);
  return Divided(num_tokens, groups.tp->size(), groups.tp->rank());
}

int64_t TokenRoom(int64_t max_tokens, int tp) { return Divided(max_tokens, tp, 0).room(); }

}  // namespace lockstep
