// What to tell an operator whose KV cache is too small, and the smallest changes that would do.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/controller/controller_event.h"

namespace lockstep {

struct KvShortage {
  std::string rank;                  // the one with the least room: "rank 3 on node7"
  int64_t max_model_len = 0;         // as asked for; 0: nobody did, and one block would do
  int64_t block_size = 0;            // tokens
  int64_t fitting_blocks = 0;        // fewer than needed_blocks
  int64_t needed_blocks = 0;         // at most 2^30
  int64_t block_bytes = 0;           // on that rank; at most 2^60
  int64_t max_batched_tokens = 0;    // of a step
  int64_t max_num_seqs = 0;          // likewise: max_batched_tokens is not to be less
  bool is_asked_for = false;         // the operator said how large the cache is
  bool is_fp8 = false;               // the cache; else in 16 bits or more
  std::optional<RankMemory> memory;  // of its GPU
};

// "max_model_len 8192 needs 512 KV blocks of 16 tokens (1.00 GiB), but only 256 (0.50 GiB) fit ...:
// raise --gpu-memory-utilization to 0.93 or lower --max-model-len to 4096". Each change alone is
// enough; where none is, it asks for more GPUs.
std::string DescribeKvShortage(const KvShortage& shortage);

}  // namespace lockstep
