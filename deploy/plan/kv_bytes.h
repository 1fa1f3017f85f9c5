// Bytes of KV cache: per token, per request, and those that a decode step reads. Pure; any thread.
#pragma once

#include <cstdint>

#include "deploy/plan/architecture.h"
#include "deploy/plan/formats.h"
#include "parallel/partition.h"

namespace lockstep::plan {

// What a rank of a layout holds of the cache.
struct KvShare {
  const Architecture& model;
  const KvFormat& format;
  int tp = 1;
  int tp_rank = 0;
  Range layers;
};

// Policies that keep or read fewer tokens than there are; 0: all of them.
struct KvPolicy {
  int64_t budget_tokens = 0;  // kept per request (StreamingLLM, H2O)
  int64_t read_tokens = 0;    // read per step and layer (Quest): saves reads, not memory
};

// Of one layer that has a cache of its own. A latent cache is whole on every tp rank; heads are
// shared out, and replicated when tp exceeds them.
int64_t KvBytesPerTokenOfLayer(const KvShare& share);

// Of all layers of the share; of layers that share a cache the first in the share has it.
int64_t KvBytesPerToken(const KvShare& share);

// One request of num_tokens, in whole blocks; sliding layers keep their window only.
int64_t KvBytesOfRequest(const KvShare& share, const KvPolicy& policy, int64_t num_tokens,
                         int64_t block_size);

// What one decode step reads for a request of num_tokens.
int64_t KvBytesReadPerStep(const KvShare& share, const KvPolicy& policy, int64_t num_tokens);

}  // namespace lockstep::plan
