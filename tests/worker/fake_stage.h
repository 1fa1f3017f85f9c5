// A language model one can compute in one's head, spread over a pipeline like a real one: every
// stage hands each token's id on as its hidden state; the last says that token t at position p is
// followed by NextToken(t, p).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/status_macros.h"
#include "model/llama/step_batch.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"
#include "runtime/worker/step_loop.h"

namespace lockstep::testing {

inline constexpr int64_t kFakeVocab = 97;

inline int32_t NextToken(int32_t token, int64_t position) {
  return static_cast<int32_t>((token * 31 + position * 7 + 5) % kFakeVocab);
}

// What the model continues `tokens` with, greedily.
inline std::vector<int32_t> FakeContinuation(std::vector<int32_t> tokens, int count) {
  const size_t num_given = tokens.size();
  for (int i = 0; i < count; ++i) {
    tokens.push_back(NextToken(tokens.back(), static_cast<int64_t>(tokens.size()) - 1));
  }
  return {tokens.begin() + num_given, tokens.end()};
}

class FakeStage {
 public:
  // Of a larger vocabulary, all but the next token are alike.
  explicit FakeStage(RankGroups& groups, int64_t vocab_size = kFakeVocab) : groups_(groups) {
    ShardedSizes sizes;
    sizes.vocab_size = vocab_size;
    vocab_ = VocabOf(sizes, groups.tp->size(), groups.tp->rank());
  }

  StageCalls Calls(int64_t max_logits_rows = 256) {
    return {.forward = [this](const StepBatch& batch) { return Forward(batch); },
            .logits = [this](int64_t first, int64_t count) { return Logits(first, count); },
            .max_logits_rows = max_logits_rows};
  }

 private:
  absl::Status Forward(const StepBatch& batch) {
    Communicator& pp = *groups_.pp;
    hidden_ = batch.token_ids;
    hidden_.resize(static_cast<size_t>(batch.num_tokens()));
    const int64_t bytes = batch.num_tokens() * static_cast<int64_t>(sizeof(int32_t));
    if (pp.rank() > 0) RETURN_IF_ERROR(pp.Recv(pp.rank() - 1, hidden_.data(), bytes));
    if (pp.rank() + 1 < pp.size()) {
      RETURN_IF_ERROR(pp.Send(pp.rank() + 1, hidden_.data(), bytes));
    }
    positions_ = batch.positions;
    rows_ = batch.logits_rows;
    return absl::OkStatus();
  }

  absl::StatusOr<const float*> Logits(int64_t first, int64_t count) {
    logits_.assign(static_cast<size_t>(count * vocab_.size()), 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t row = rows_[first + i];
      const int32_t next = NextToken(hidden_[row], positions_[row]);
      if (next >= vocab_.begin && next < vocab_.end) {
        logits_[i * vocab_.size() + next - vocab_.begin] = 10.0f;
      }
    }
    return logits_.data();
  }

  RankGroups& groups_;
  Range vocab_;
  std::vector<int32_t> hidden_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> rows_;
  std::vector<float> logits_;
};

}  // namespace lockstep::testing
