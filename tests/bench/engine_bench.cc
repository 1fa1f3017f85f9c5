// What a step costs the controller's loop: Schedule, Commit and TakeEvents in steady state, one
// step ahead of its results, by number of running sequences and of KV blocks. Every output that
// ends is replaced at once, and the replacement's Add, prefill and prefix cache entries are part of
// the time. One iteration is one step.
//
//   engine_bench --benchmark_filter=/256/
//
// Short: 16 + 32 tokens, so that one sequence in 32 is replaced in every step. Long: 16 + 1024
// tokens, almost only decodes.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/base/check.h"
#include "runtime/engine/engine.h"

namespace lockstep::engine {
namespace {

constexpr int kPromptTokens = 16;

EngineConfig ConfigFor(int num_seqs, int64_t num_blocks) {
  EngineConfig config;
  config.num_blocks = num_blocks;
  config.max_num_seqs = num_seqs;
  config.max_batched_tokens = 8192;
  config.max_model_len = 4096;
  config.vocab_size = 128256;
  return config;
}

// Answers every plan with tokens that nothing else has seen, so that the prefix cache always
// misses.
class Loop {
 public:
  Loop(int num_seqs, int64_t num_blocks, int max_tokens)
      : engine_(ConfigFor(num_seqs, num_blocks)), max_tokens_(max_tokens) {
    for (int i = 0; i < num_seqs; ++i) {
      // The first ones end at different times.
      AddRequest(1 + i * max_tokens / num_seqs);
    }
    for (int i = 0; i < 2 * max_tokens; ++i) Step();
  }

  void Step() {
    while (std::optional<StepPlan> plan = engine_.Schedule(absl::UnixEpoch())) {
      in_flight_.push_back(*std::move(plan));
    }
    result_.step_id = in_flight_.front().step_id;
    result_.sampled.clear();
    for (const SlotWork& work : in_flight_.front().work) {
      if (work.sample) result_.sampled.push_back({work.slot, NextToken(), std::nullopt});
    }
    in_flight_.erase(in_flight_.begin());
    LS_CHECK(engine_.Commit(result_).ok());
    for (const EngineEvent& event : engine_.TakeEvents()) {
      ++num_tokens_;
      if (event.finish) AddRequest(max_tokens_);
    }
  }

  const Engine& engine() const { return engine_; }
  int64_t num_tokens() const { return num_tokens_; }

 private:
  int32_t NextToken() { return static_cast<int32_t>((counter_ += 7919) % 128256); }

  void AddRequest(int max_tokens) {
    EngineRequest request;
    request.request_id = next_id_++;
    for (int i = 0; i < kPromptTokens; ++i) request.prompt.push_back(NextToken());
    request.sampling.max_tokens = max_tokens;
    LS_CHECK(engine_.Add(std::move(request)).ok());
  }

  Engine engine_;
  const int max_tokens_;
  std::vector<StepPlan> in_flight_;
  StepResult result_;
  uint64_t next_id_ = 1;
  uint64_t counter_ = 0;
  int64_t num_tokens_ = 0;
};

void RunSteps(benchmark::State& state, int max_tokens) {
  Loop loop(state.range(0), state.range(1), max_tokens);
  const uint64_t preemptions = loop.engine().Stats().num_preemptions;
  const int64_t tokens = loop.num_tokens();
  for (auto _ : state) loop.Step();
  loop.engine().CheckInvariants();
  LS_CHECK_EQ(loop.engine().Stats().num_preemptions, preemptions) << "the cache is too small";
  state.counters["tokens/step"] =
      static_cast<double>(loop.num_tokens() - tokens) / state.iterations();
}

void BM_ShortOutputs(benchmark::State& state) { RunSteps(state, 32); }
void BM_LongOutputs(benchmark::State& state) { RunSteps(state, 1024); }

BENCHMARK(BM_ShortOutputs)
    ->ArgNames({"seqs", "blocks"})
    ->ArgsProduct({{1, 64, 256}, {1024, 100'000, 1'000'000}})
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.1);
BENCHMARK(BM_LongOutputs)
    ->ArgNames({"seqs", "blocks"})
    ->ArgsProduct({{1, 64, 256}, {100'000, 1'000'000}})
    ->Unit(benchmark::kMicrosecond)
    ->MinTime(0.1);

}  // namespace
}  // namespace lockstep::engine

BENCHMARK_MAIN();
