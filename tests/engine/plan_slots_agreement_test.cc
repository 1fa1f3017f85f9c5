// What the ranks' slot table makes of the engine's plans is what the simulated rank makes of them:
// same tokens, positions, KV cells, block tables and logits rows, on the first, an inner and the
// last stage, while sampled tokens reach the first stage as late as the pipeline allows.
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/llama/block_tables.h"
#include "runtime/engine/simulated_rank.h"
#include "runtime/worker/slots.h"
#include "tests/engine/random_workload.h"

namespace lockstep::engine {
namespace {

constexpr int kAgreementSeeds = 150;
constexpr int kAgreementRequests = 25;

class Agreement {
 public:
  Agreement(const EngineConfig& config, const FakeLanguageModel& model, uint64_t seed)
      : config_(config), model_(model), random_(seed) {}

  void Check(const StepPlan& plan) {
    if (plan.step_id == 1) Start();
    SCOPED_TRACE("step " + std::to_string(plan.step_id));
    for (SlotTable* table : {first_.get(), inner_.get(), last_.get()}) {
      const absl::Status applied = table->Apply(plan);
      ASSERT_TRUE(applied.ok()) << applied;
    }
    rank_->ApplyDeltas(plan);
    DeliverTokens();
    first_->FillTokenIds();
    CheckBatches(plan);
    CheckLogits(plan);
    // The simulated replica checks the plan's distance to its tokens; here every token is known.
    const StepResult result = rank_->ApplyWork(plan, plan.step_id);
    CheckSampled(result);
    for (size_t i = 0; i < result.sampled.size(); ++i) {
      last_->AppendSampled(last_->sampled()[i], result.sampled[i].token);
    }
    on_their_way_.push_back({plan.step_id, {}, result.sampled});
    on_their_way_.back().refs.assign(first_->sampled().begin(), first_->sampled().end());
    ++num_steps_;
  }

  int64_t num_steps() const { return num_steps_; }
  int64_t num_waits() const { return num_waits_; }

 private:
  struct OnTheirWay {
    uint64_t step_id = 0;
    std::vector<SlotRef> refs;
    std::vector<SampledToken> tokens;
  };

  void Start() {
    SlotTableOptions options;
    options.limits = {.max_batched_tokens = config_.max_batched_tokens,
                      .max_num_seqs = config_.max_num_seqs,
                      .max_model_len = config_.max_model_len,
                      .block_size = config_.block_size};
    options.num_blocks = config_.num_blocks;
    options.vocab_size = kVocabSize;
    options.vocab = {0, kVocabSize};
    // A stage keeps what a replica that is lost has left there.
    if (kept_tables_.empty()) kept_tables_.assign(3, BlockTables(options.limits));
    const auto table = [&options](bool is_first, bool is_last) {
      options.is_first_stage = is_first;
      options.is_last_stage = is_last;
      return std::make_unique<SlotTable>(options);
    };
    first_ = table(true, false);
    inner_ = table(false, false);
    last_ = table(false, true);
    const SimulatedRankOptions rank{.num_blocks = config_.num_blocks,
                                    .num_host_blocks = config_.num_host_blocks,
                                    .block_size = config_.block_size,
                                    .max_num_seqs = config_.max_num_seqs,
                                    .max_model_len = config_.max_model_len,
                                    .pipeline_depth = config_.pipeline_depth};
    rank_ = std::make_unique<SimulatedRank>(rank, model_);
    on_their_way_.clear();
  }

  // Some tokens came early; the others come when the step cannot do without them.
  void DeliverTokens() {
    while (!on_their_way_.empty() && random_() % 3 == 0) DeliverOldest();
    num_waits_ += first_->MissesTokens() ? 1 : 0;
    while (first_->MissesTokens()) {
      ASSERT_FALSE(on_their_way_.empty()) << "a token that no step samples";
      DeliverOldest();
    }
  }
  void DeliverOldest() {
    const OnTheirWay oldest = std::move(on_their_way_.front());
    on_their_way_.pop_front();
    ASSERT_EQ(oldest.refs.size(), oldest.tokens.size());
    for (size_t i = 0; i < oldest.refs.size(); ++i) {
      first_->AppendSampled(oldest.refs[i], oldest.tokens[i].token);
    }
  }

  void CheckBatches(const StepPlan& plan) {
    StepBatch expected;
    expected.query_starts.push_back(0);
    std::vector<std::vector<int32_t>> tables;
    for (const SlotWork& work : plan.work) {
      const SimulatedRank::Slot& slot = rank_->slot(work.slot);
      const int64_t end_of_known = slot.computed + work.num_tokens;
      const int64_t end = slot.computed + work.num_rows();
      for (int64_t position = slot.computed; position < end; ++position) {
        expected.token_ids.push_back(
            position < end_of_known ? slot.tokens[position] : work.drafts[position - end_of_known]);
        expected.positions.push_back(position);
        expected.slot_mapping.push_back(rank_->CellOf(slot, position));
      }
      expected.query_starts.push_back(expected.positions.size());
      expected.context_lens.push_back(end);
      const int64_t used = (end + config_.block_size - 1) / config_.block_size;
      tables.emplace_back(slot.blocks.begin(), slot.blocks.begin() + used);
    }
    EXPECT_EQ(first_->batch().token_ids, expected.token_ids);
    auto next_kept = kept_tables_.begin();
    for (const SlotTable* table : {first_.get(), inner_.get(), last_.get()}) {
      const StepBatch& batch = table->batch();
      EXPECT_EQ(batch.positions, expected.positions);
      EXPECT_EQ(batch.slot_mapping, expected.slot_mapping);
      EXPECT_EQ(batch.query_starts, expected.query_starts);
      EXPECT_EQ(batch.context_lens, expected.context_lens);
      ASSERT_EQ(batch.table_rows.size(), tables.size());
      BlockTables& kept = *next_kept++;
      ASSERT_TRUE(kept.Write(batch.new_blocks, config_.num_blocks).ok());
      for (size_t i = 0; i < tables.size(); ++i) {
        const std::span<const int32_t> row = kept.row(batch.table_rows[i]);
        ASSERT_LE(tables[i].size(), row.size());
        EXPECT_EQ(std::vector<int32_t>(row.begin(), row.begin() + std::ssize(tables[i])),
                  tables[i]);
      }
    }
  }

  void CheckLogits(const StepPlan& plan) {
    std::vector<int32_t> rows;
    auto use = last_->logits_uses().begin();
    int32_t row = 0;
    for (const SlotWork& work : plan.work) {
      const SimulatedRank::Slot& slot = rank_->slot(work.slot);
      for (int64_t i = 0; i < work.num_rows(); ++i, ++row) {
        const int64_t next = slot.computed + i + 1;
        const bool judges = slot.sampling.num_prompt_logprobs >= 0 && next < slot.num_prompt_tokens;
        const bool chooses = work.sample && i + 1 >= work.num_tokens;
        if (!judges && !chooses) continue;
        rows.push_back(row);
        ASSERT_NE(use, last_->logits_uses().end());
        EXPECT_EQ(static_cast<int64_t>(use->position), next);
        EXPECT_EQ(use->prompt_target, judges ? slot.tokens[next] : -1);
        const LogitsRow logits = last_->RowOf(*use);
        EXPECT_EQ(logits.sequence_index, slot.sequence_index);
        EXPECT_EQ(*logits.params, slot.sampling);
        if (chooses) {
          EXPECT_EQ(logits.num_output_tokens, next - slot.num_prompt_tokens);
        }
        ++use;
      }
    }
    EXPECT_EQ(use, last_->logits_uses().end());
    EXPECT_EQ(last_->batch().logits_rows, rows);
    EXPECT_TRUE(first_->batch().logits_rows.empty());
  }

  void CheckSampled(const StepResult& result) {
    for (const SlotTable* table : {first_.get(), inner_.get(), last_.get()}) {
      ASSERT_EQ(table->sampled().size(), result.sampled.size());
      for (size_t i = 0; i < result.sampled.size(); ++i) {
        EXPECT_EQ(table->sampled()[i].slot, result.sampled[i].slot);
      }
    }
  }

  const EngineConfig config_;
  const FakeLanguageModel& model_;
  std::mt19937_64 random_;
  std::unique_ptr<SlotTable> first_, inner_, last_;
  std::vector<BlockTables> kept_tables_;  // of their stages
  std::unique_ptr<SimulatedRank> rank_;
  std::deque<OnTheirWay> on_their_way_;
  int64_t num_steps_ = 0;
  int64_t num_waits_ = 0;
};

TEST(PlanSlotsAgreement, SlotTableReadsPlansAsTheSimulatedRankDoes) {
  int64_t num_steps = 0, num_waits = 0;
  for (int seed = 0; seed < kAgreementSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomWorkload workload(seed);
    EngineDriver driver(workload.config());
    Agreement agreement(workload.config(), driver.model(), seed);
    driver.OnPlan([&agreement](const StepPlan& plan) { agreement.Check(plan); });
    workload.Run(driver, kAgreementRequests, /*may_lose_replica=*/true);
    driver.ExpectSameAsAlone();
    num_steps += agreement.num_steps();
    num_waits += agreement.num_waits();
  }
  EXPECT_GT(num_steps, 10000);
  EXPECT_GT(num_waits, 1000);  // tokens did come late
}

}  // namespace
}  // namespace lockstep::engine
