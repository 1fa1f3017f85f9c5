// How the tokens of a step are divided over a tensor parallel group for what is done to each token
// alone: the stream that layers add to, and its norms. Pure.
//
// Undivided, every rank does all of it, and sums over ranks are all-reduces. Divided (sequence
// parallelism: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models", section 4.2.2), a sum is a reduce-scatter, each rank norms its own tokens, and what the
// next products read is gathered: a norm costs a rank its share, and fewer bytes travel where norms
// are narrower than the f32 of sums (to a number 6 bytes instead of 8 with bf16, 5 with e4m3). Bits
// are the same either way where sums follow the tree of communicator.h (NCCL's own do not).
#pragma once

#include <cstdint>

#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace lockstep {

// Between devices a division costs one more collective, some 10 us to begin, and an all-reduce that
// adds inside NVLink's switches uses both directions of the links at once, as its two halves apart
// do not: at eight H100s' rates (480 GB/s by NCCL's measure of it, 360 for the halves; NVIDIA's
// nccl-tests) 6 bytes take as long as its 8. What is left is the norms' time, equal to 10 us at
// some 11 MB, and with e4m3 a sixth of the traffic's. vLLM, whose sums are narrower and gain from
// the norms alone, begins at 64 MiB of bf16 (SP_MIN_PER_GPU_SIZE_MB).
constexpr int64_t kMostUndividedBytesBetweenDevices = int64_t{16} << 20;

// Between ranks on the CPUs of one host, one thread each: a prompt of 512 tokens of a 1b takes 2 %
// less, 128 tokens (1 MiB) as long as undivided, and the decodes of the smallest models up to 12 %
// more.
constexpr int64_t kMostUndividedBytesOnCpus = int64_t{1} << 20;

struct TokenSplit {
  int64_t num_tokens = 0;
  int64_t share = 0;  // of each rank; the last ones' reach beyond num_tokens, or lie there
  int num_shares = 1;
  Range mine;  // this rank's share without what lies beyond num_tokens; may be empty

  bool is_divided() const { return num_shares > 1; }
  // Rows of arrays that are gathered in shares.
  int64_t room() const { return share * num_shares; }
};

TokenSplit Undivided(int64_t num_tokens);
TokenSplit Divided(int64_t num_tokens, int tp, int tp_rank);
// As the groups want a step of hidden states of that width (f32).
TokenSplit SplitTokens(const RankGroups& groups, int64_t num_tokens, int64_t hidden);

// The rows that any split of up to so many tokens needs.
int64_t TokenRoom(int64_t max_tokens, int tp);

}  // namespace lockstep
