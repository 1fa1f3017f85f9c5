// Runs whole generations through LlamaStage, without an engine: ranks as threads, prompts in
// chunks, greedy decoding, a paged cache whose blocks lie in shuffled order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend_options.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/llama_stage.h"

namespace lockstep::testing {

struct Request {
  std::vector<int32_t> prompt;
  int num_greedy = 0;  // tokens to generate
};

struct Outcome {
  std::vector<int32_t> greedy;  // [num_greedy]
  std::vector<std::vector<float>>
      logits;  // after each computed token: [prompt + num_greedy - 1][vocab_size]; or num_greedy
};
bool SameBits(const std::vector<Outcome>& a, const std::vector<Outcome>& b);
// Euclidean distance over length, over all logits of prompts: what both saw the same tokens before.
double Distance(const std::vector<Outcome>& got, const std::vector<Outcome>& want);
// What is left of outcomes with DriveOptions::only_needed_logits.
std::vector<Outcome> OfNeededLogits(std::vector<Outcome> outcomes);

struct DriveOptions {
  int tp = 1;
  int pp = 1;
  std::function<std::unique_ptr<Backend>()> make_backend;  // once per rank
  // The groups of `host` over the ranks' devices; null: they are the host's.
  std::function<absl::StatusOr<RankGroups>(Backend& backend, RankGroups& host)> make_device_groups;
  bool stages_lie_apart = false;  // as if on hosts of their own: hidden states travel in slices
  // RankGroups'; nothing: what the groups say.
  std::optional<int64_t> most_undivided_bytes;
  StageOptions stage;  // its limits hold for every batch
  int64_t chunk = 64;  // most tokens of one sequence in a step
  bool staggered =
      false;  // request i joins at step 2 * i, so that prefills and decodes mix; else all at once
  uint32_t block_seed = 1;
  bool only_needed_logits = false;  // of tokens that choose the next one alone, not of all
};

// One outcome per request, the same on all ranks of the last stage (checked). The requests run
// together, as far as the limits allow.
absl::StatusOr<std::vector<Outcome>> Drive(const Checkpoint& checkpoint,
                                           const DriveOptions& options,
                                           const std::vector<Request>& requests);

// The same for one rank of a grid whose other ranks run elsewhere (in other processes); its
// outcomes hold logits on the last stage only. options.tp and options.pp are not used.
absl::StatusOr<std::vector<Outcome>> DriveRank(const Checkpoint& checkpoint,
                                               const ProcessGrid& grid, int rank,
                                               RankGroups& groups, const DriveOptions& options,
                                               const std::vector<Request>& requests);

// All weights in that dtype.
inline StageOptions::Weights WeightsIn(DType dtype) {
  if (dtype == DType::kF32) return StageOptions::Weights::kF32;
  return dtype == DType::kF16 ? StageOptions::Weights::kF16 : StageOptions::Weights::kBF16;
}

// MakeCpuBackend or a failed check.
std::function<std::unique_ptr<Backend>()> CpuBackends(int num_threads);

}  // namespace lockstep::testing
