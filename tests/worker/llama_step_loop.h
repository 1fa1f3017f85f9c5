// Whole generations of a model's golden cases through the step loop.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/llama/llama_stage.h"
#include "model/sampling/device_choice.h"
#include "model/sampling/token_return.h"
#include "nlohmann/json.hpp"
#include "runtime/worker/step_loop.h"
#include "tests/worker/plan_writer.h"

namespace lockstep::testing {

// A model and how it is spread and fed.
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

inline std::vector<Golden> ReadGolden(const std::filesystem::path& model) {
  std::ifstream file(model / "golden.json");
  std::vector<Golden> cases;
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const nlohmann::json& entry : golden["cases"]) {
    cases.push_back({entry["prompt"], entry["greedy_tokens"], entry["prompt_logprob_of_next"]});
  }
  return cases;
}

inline constexpr int kBlockSize = 16;

inline SamplingParams GreedyWithPromptLogprobs(uint32_t) {
  SamplingParams params = PlanWriter::Greedy();
  params.num_prompt_logprobs = 0;
  return params;
}

// All cases at once: prompts in chunks, then decodes of every slot in every step.
inline std::vector<engine::StepPlan> PlansFor(
    const std::vector<Golden>& cases, int chunk,
    const std::function<SamplingParams(uint32_t slot)>& params_of = GreedyWithPromptLogprobs) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  int32_t next_block = 0;
  size_t num_decodes = 0;
  for (uint32_t slot = 0; slot < cases.size(); ++slot) {
    const std::vector<int32_t>& prompt = cases[slot].prompt;
    num_decodes = std::max(num_decodes, cases[slot].greedy_tokens.size() - 1);
    std::vector<int32_t> blocks((prompt.size() + cases[slot].greedy_tokens.size()) / kBlockSize +
                                1);
    for (int32_t& block : blocks) block = next_block++;
    plan.Open(slot, prompt, params_of(slot)).Grant(slot, blocks);
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

struct LoopOptions {
  bool chooses_on_device = true;        // where logits lie on one
  RankGroups* device_groups = nullptr;  // of the stage, if not the host's
  int64_t* num_steps_ahead = nullptr;   // written by the rank that reports
};

inline constexpr BatchLimits kLoopLimits = {
    .max_batched_tokens = 512, .max_num_seqs = 8, .max_model_len = 2304, .block_size = kBlockSize};

inline absl::Status RunRank(const std::filesystem::path& model, const Case& layout, int rank,
                            Backend& backend, RankGroups& groups,
                            const std::vector<engine::StepPlan>& plans,
                            std::vector<engine::StepResult>& results,
                            const LoopOptions& options = {}) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(model));
  StageOptions stage_options;
  stage_options.limits = kLoopLimits;
  RankGroups& on_device = options.device_groups != nullptr ? *options.device_groups : groups;
  constexpr int64_t kNumBlocks = 256;
  ASSIGN_OR_RETURN(const std::unique_ptr<LlamaStage> stage,
                   LlamaStage::Load(*checkpoint, *ProcessGrid::Create(layout.tp, layout.pp), rank,
                                    backend, on_device, stage_options, nullptr));
  RETURN_IF_ERROR(stage->AllocateKvCache(kNumBlocks));
  std::unique_ptr<DeviceChooser> device_logits;
  std::unique_ptr<TokenReturn> token_return;
  const bool chooses_on_device = backend.SummarizesLogits() && options.chooses_on_device;
  if (stage->is_last() && chooses_on_device) {
    ASSIGN_OR_RETURN(device_logits,
                     DeviceChooser::Create(backend, checkpoint->config().vocab_size, *on_device.tp,
                                           kLoopLimits.max_batched_tokens));
  }
  if (stage->is_first() != stage->is_last() && chooses_on_device) {
    ASSIGN_OR_RETURN(token_return,
                     TokenReturn::Create(backend, *on_device.pp, kLoopLimits.max_num_seqs));
  }
  const auto chosen = [&]() -> const ChosenToken* {
    if (token_return != nullptr) return token_return->table();
    return device_logits != nullptr ? device_logits->chosen_on_device() : nullptr;
  };
  RankProgress progress;
  StepLoop loop({.limits = stage_options.limits,
                 .num_blocks = kNumBlocks,
                 .vocab_size = checkpoint->config().vocab_size,
                 .eos_token_ids = checkpoint->config().eos_token_ids},
                {.forward = [&](const StepBatch& batch) { return stage->Forward(batch, chosen()); },
                 .logits =
                     [&](int64_t first, int64_t count) {
                       return device_logits != nullptr ? stage->LogitsOnDevice(first, count)
                                                       : stage->Logits(first, count);
                     },
                 .max_logits_rows = device_logits != nullptr ? stage->max_device_logits_rows()
                                                             : LlamaStage::kMaxLogitsRows,
                 .device_logits = device_logits.get(),
                 .token_return = token_return.get()},
                groups, progress,
                [&](engine::StepResult result) { results.push_back(std::move(result)); });
  PlanQueue queue;
  for (const engine::StepPlan& plan : plans) RETURN_IF_ERROR(queue.Push(plan));
  queue.Close();
  RETURN_IF_ERROR(loop.Run(queue));
  const bool reports = stage->is_last() && groups.tp->rank() == 0;
  if (reports && options.num_steps_ahead != nullptr) {
    *options.num_steps_ahead = loop.num_steps_ahead();
  }
  return absl::OkStatus();
}

// Greedy tokens and prompt log-probabilities equal the reference's.
inline void ExpectGolden(const std::vector<engine::StepResult>& results,
                         const std::vector<Golden>& cases) {
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

}  // namespace lockstep::testing
