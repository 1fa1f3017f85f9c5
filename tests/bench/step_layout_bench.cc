// What the host does for a decode step between its plan and its first kernel: the plan into the
// slots' batch, the batch judged, laid out and copied; by number of sequences and tokens of context
// that each has. Every sequence gets a block when its last one is full, not all in the same step.
// One iteration is one step; `uploaded` is bytes to the device in a step.
//
//   step_layout_bench
//   valgrind --tool=callgrind --toggle-collect='*RunStep*' step_layout_bench --benchmark_filter=...
#include <cstdint>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/cpu_features.h"
#include "model/llama/device_batch.h"
#include "runtime/worker/slots.h"

namespace lockstep {
namespace {

constexpr int kBlockSize = 16;
constexpr int64_t kSteps = 256;
constexpr int64_t kVocabSize = 1000;

// Counts what is copied.
class CountingBackend final : public cpu::CpuBackend {
 public:
  CountingBackend() : CpuBackend(**cpu::FindKernels("auto"), /*num_threads=*/1) {}
  void CopyToDevice(void* device, const void* host, int64_t bytes) override {
    uploaded_bytes_ += bytes;
    CpuBackend::CopyToDevice(device, host, bytes);
  }
  int64_t uploaded_bytes() const { return uploaded_bytes_; }

 private:
  int64_t uploaded_bytes_ = 0;
};

// Sequences that go on from about `context` tokens.
class Steps {
 public:
  Steps(int64_t num_seqs, int64_t context)
      : limits_{.max_batched_tokens = 2048,
                .max_num_seqs = num_seqs,
                .max_model_len = context + kSteps + kBlockSize,
                .block_size = kBlockSize},
        num_blocks_(num_seqs * limits_.max_blocks_per_seq()),
        slots_({.limits = limits_,
                .num_blocks = num_blocks_,
                .vocab_size = kVocabSize,
                .is_first_stage = true,
                .is_last_stage = true,
                .vocab = {.begin = 0, .end = kVocabSize}}),
        batch_(*DeviceBatch::Allocate(backend_, limits_, /*num_heads=*/8,
                                      {.num_kv_heads = 8, .block_size = kBlockSize})) {
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      lengths_.push_back(context + seq % kBlockSize);
      Open(seq);
    }
    LayOut();
  }

  // callgrind finds it by its name.
  [[gnu::noinline]] void RunStep() { LayOut(); }

  // After a step.
  void PlanNext() {
    for (const SlotRef& ref : slots_.sampled()) slots_.AppendSampled(ref, 7);
    plan_ = {};
    for (size_t seq = 0; seq < lengths_.size(); ++seq) Decode(seq);
  }
  int64_t uploaded_bytes() const { return backend_.uploaded_bytes(); }

 private:
  void LayOut() {
    LS_CHECK(slots_.Apply(plan_).ok());
    slots_.FillTokenIds();
    const StepBatch& batch = slots_.batch();
    LS_CHECK(batch_.Accept(batch, num_blocks_).ok());
    batch_.CopyFrom(batch, backend_, AttentionCut::kBest);
  }

  void Open(int64_t seq) {
    const int64_t length = lengths_[static_cast<size_t>(seq)];
    engine::SlotOpen open;
    open.slot = static_cast<uint32_t>(seq);
    open.tokens.assign(static_cast<size_t>(length), 5);
    open.num_prompt_tokens = static_cast<uint32_t>(length);
    open.num_computed_tokens = static_cast<uint32_t>(length - 1);
    plan_.opened.push_back(std::move(open));
    engine::BlockGrant grant{.slot = static_cast<uint32_t>(seq), .blocks = {}};
    while (std::ssize(grant.blocks) * kBlockSize < length) grant.blocks.push_back(next_block_++);
    plan_.grants.push_back(std::move(grant));
    plan_.work.push_back({.slot = static_cast<uint32_t>(seq)});
    plan_.step_id = 1;
  }

  void Decode(size_t seq) {
    plan_.step_id = slots_.last_step() + 1;
    if (lengths_[seq]++ % kBlockSize == 0) {
      plan_.grants.push_back({.slot = static_cast<uint32_t>(seq), .blocks = {next_block_++}});
    }
    plan_.work.push_back({.slot = static_cast<uint32_t>(seq)});
  }

  CountingBackend backend_;
  const BatchLimits limits_;
  const int64_t num_blocks_;
  SlotTable slots_;
  DeviceBatch batch_;
  std::vector<int64_t> lengths_;
  int32_t next_block_ = 0;
  engine::StepPlan plan_;
};

void BM_DecodeStep(benchmark::State& state) {
  Steps steps(state.range(0), state.range(1));
  const int64_t before = steps.uploaded_bytes();
  for (auto unused : state) {
    state.PauseTiming();
    steps.PlanNext();
    state.ResumeTiming();
    steps.RunStep();
  }
  state.counters["uploaded"] = static_cast<double>(steps.uploaded_bytes() - before) /
                               static_cast<double>(state.iterations());
}
BENCHMARK(BM_DecodeStep)
    ->Args({1, 8192})
    ->Args({256, 1024})
    ->Args({256, 8192})
    ->Args({64, 131072})
    ->Iterations(kSteps)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace lockstep

BENCHMARK_MAIN();
