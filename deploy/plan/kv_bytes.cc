#include "deploy/plan/kv_bytes.h"

#include <algorithm>
#include <cmath>

namespace lockstep::plan {
namespace {

int64_t AtMost(int64_t tokens, int64_t limit) {
  return limit > 0 ? std::min(tokens, limit) : tokens;
}

bool HasOwnCache(const KvShare& share, int64_t layer) {
  return layer == share.layers.begin || layer % share.model.layers_per_kv == 0;
}

}  // namespace

int64_t KvBytesPerTokenOfLayer(const KvShare& share) {
  const Architecture& model = share.model;
  if (model.latent) {
    return static_cast<int64_t>(std::ceil(
        share.format.BytesOf(model.latent->kv_lora_rank + model.latent->qk_rope_head_dim)));
  }
  const int64_t heads = KvHeadsOf(model.sharded_sizes(), share.tp, share.tp_rank).size();
  return 2 * heads * static_cast<int64_t>(std::ceil(share.format.BytesOf(model.head_dim)));
}

int64_t KvBytesPerToken(const KvShare& share) {
  int64_t caches = 0;
  for (int64_t layer = share.layers.begin; layer < share.layers.end; ++layer) {
    caches += HasOwnCache(share, layer) ? 1 : 0;
  }
  return caches * KvBytesPerTokenOfLayer(share);
}

int64_t KvBytesOfRequest(const KvShare& share, const KvPolicy& policy, int64_t num_tokens,
                         int64_t block_size) {
  const int64_t bytes = KvBytesPerTokenOfLayer(share);
  int64_t total = 0;
  for (int64_t layer = share.layers.begin; layer < share.layers.end; ++layer) {
    if (!HasOwnCache(share, layer)) continue;
    const int64_t window = share.model.window_of_layer[layer];
    const int64_t kept = AtMost(AtMost(num_tokens, window), policy.budget_tokens);
    total += (kept + block_size - 1) / block_size * block_size * bytes;
  }
  return total;
}

int64_t KvBytesReadPerStep(const KvShare& share, const KvPolicy& policy, int64_t num_tokens) {
  const int64_t bytes = KvBytesPerTokenOfLayer(share);
  int64_t total = 0;
  for (int64_t layer = share.layers.begin; layer < share.layers.end; ++layer) {
    const int64_t window = share.model.window_of_layer[layer];
    const int64_t kept = AtMost(AtMost(num_tokens, window), policy.budget_tokens);
    total += AtMost(kept, policy.read_tokens) * bytes;
  }
  return total;
}

}  // namespace lockstep::plan
