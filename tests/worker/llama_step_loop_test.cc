// The whole rank but its wire, on real checkpoints: greedy tokens and prompt log-probabilities
// equal the reference's.
#include <fstream>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/llama_stage.h"
#include "nlohmann/json.hpp"
#include "runtime/worker/step_loop.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/assets.h"
#include "tests/worker/plan_writer.h"

namespace lockstep {
namespace {

using testing::PlanWriter;

struct Case {
  const char* model;
  int tp;
  int pp;
  int chunk;  // of the prompt, in tokens
};

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy_tokens;
  std::vector<float> prompt_logprobs;
};

std::vector<Golden> ReadGolden(const std::filesystem::path& model) {
  std::ifstream file(model / "golden.json");
  std::vector<Golden> cases;
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const nlohmann::json& entry : golden["cases"]) {
    cases.push_back({entry["prompt"], entry["greedy_tokens"], entry["prompt_logprob_of_next"]});
  }
  return cases;
}

constexpr int kBlockSize = 16;

// All cases at once: prompts in chunks, then decodes of every slot in every step.
std::vector<engine::StepPlan> PlansFor(const std::vector<Golden>& cases, int chunk) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  SamplingParams params = PlanWriter::Greedy();
  params.num_prompt_logprobs = 0;
  int32_t next_block = 0;
  size_t num_decodes = 0;
  for (uint32_t slot = 0; slot < cases.size(); ++slot) {
    const std::vector<int32_t>& prompt = cases[slot].prompt;
    num_decodes = std::max(num_decodes, cases[slot].greedy_tokens.size() - 1);
    std::vector<int32_t> blocks((prompt.size() + cases[slot].greedy_tokens.size()) / kBlockSize +
                                1);
    for (int32_t& block : blocks) block = next_block++;
    plan.Open(slot, prompt, params).Grant(slot, blocks);
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const size_t count = std::min<size_t>(chunk, prompt.size() - at);
      plans.push_back(plan.Chunk(slot, count, at + count == prompt.size()).Take());
    }
  }
  for (size_t i = 0; i < num_decodes; ++i) {
    for (uint32_t slot = 0; slot < cases.size(); ++slot) {
      if (i + 1 < cases[slot].greedy_tokens.size()) plan.Decode(slot);
    }
    plans.push_back(plan.Take());
  }
  return plans;
}

absl::Status RunRank(const std::filesystem::path& model, const Case& layout, int rank,
                     RankGroups& groups, const std::vector<engine::StepPlan>& plans,
                     std::vector<engine::StepResult>& results) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model));
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeCpuBackend({}));
  StageOptions stage_options;
  stage_options.limits = {.max_batched_tokens = 512,
                          .max_num_seqs = 8,
                          .max_model_len = 2304,
                          .block_size = kBlockSize};
  constexpr int64_t kNumBlocks = 256;
  ASSIGN_OR_RETURN(const std::unique_ptr<LlamaStage> stage,
                   LlamaStage::Load(*checkpoint, *ProcessGrid::Create(layout.tp, layout.pp), rank,
                                    *backend, groups, stage_options, nullptr));
  RETURN_IF_ERROR(stage->AllocateKvCache(kNumBlocks));
  RankProgress progress;
  StepLoop loop(
      {.limits = stage_options.limits,
       .num_blocks = kNumBlocks,
       .vocab_size = checkpoint->config().vocab_size,
       .eos_token_ids = checkpoint->config().eos_token_ids},
      {.forward = [&](const StepBatch& batch) { return stage->Forward(batch); },
       .logits = [&](int64_t first, int64_t count) { return stage->Logits(first, count); },
       .max_logits_rows = LlamaStage::kMaxLogitsRows},
      groups, progress, [&](engine::StepResult result) { results.push_back(std::move(result)); });
  PlanQueue queue;
  for (const engine::StepPlan& plan : plans) RETURN_IF_ERROR(queue.Push(plan));
  queue.Close();
  return loop.Run(queue);
}

class LlamaStepLoopTest : public ::testing::TestWithParam<Case> {};

TEST_P(LlamaStepLoopTest, EqualsTheReference) {
  const Case& layout = GetParam();
  const std::filesystem::path model = testing::SharedAssets() / "models" / layout.model;
  SKIP_WITHOUT_ASSET(model);
  const std::vector<Golden> cases = ReadGolden(model);
  ASSERT_FALSE(cases.empty());
  const std::vector<engine::StepPlan> plans = PlansFor(cases, layout.chunk);
  std::vector<engine::StepResult> results;
  testing::RunRanks(layout.tp, layout.pp, [&](int rank, RankGroups& groups) {
    return RunRank(model, layout, rank, groups, plans, results);
  });

  std::vector<std::vector<int32_t>> tokens(cases.size());
  std::vector<std::vector<float>> logprobs(cases.size());
  for (const engine::StepResult& result : results) {
    for (const auto& sampled : result.sampled) tokens[sampled.slot].push_back(sampled.token);
    for (const auto& prompt : result.prompt_logprobs) {
      EXPECT_EQ(prompt.first_position, logprobs[prompt.slot].size() + 1);
      for (const LogprobInfo& info : prompt.logprobs) {
        logprobs[prompt.slot].push_back(info.logprob);
      }
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(tokens[i], cases[i].greedy_tokens) << "case " << i;
    ASSERT_EQ(logprobs[i].size(), cases[i].prompt_logprobs.size()) << "case " << i;
    for (size_t j = 0; j < logprobs[i].size(); ++j) {
      const float expected = cases[i].prompt_logprobs[j];
      ASSERT_NEAR(logprobs[i][j], expected, 1e-3 * std::max(1.0f, std::abs(expected)))
          << "case " << i << ", position " << j + 1;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, LlamaStepLoopTest,
    ::testing::Values(Case{"stories260K", 1, 1, 3}, Case{"stories260K", 2, 1, 512},
                      Case{"stories260K", 4, 1, 2}, Case{"stories260K", 1, 5, 512},
                      Case{"stories260K", 2, 2, 1}, Case{"tiny-llama31", 1, 1, 512},
                      Case{"tiny-llama31", 2, 2, 100}),
    [](const auto& info) {
      std::string name = info.param.model;
      std::erase(name, '-');
      return name + "_tp" + std::to_string(info.param.tp) + "_pp" + std::to_string(info.param.pp);
    });

}  // namespace
}  // namespace lockstep
