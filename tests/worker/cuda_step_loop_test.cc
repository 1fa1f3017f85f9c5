// The step loop over the CUDA backend, on the emulation of CUDA, its tokens chosen there.
#include <mutex>

#include "kernels/cuda/cuda_backend.h"
#include "tests/parallel/run_ranks.h"
#include "tests/support/assets.h"
#include "tests/support/cuda_emulation/emulation.h"
#include "tests/worker/fake_constraints.h"
#include "tests/worker/fake_device_stage.h"
#include "tests/worker/llama_step_loop.h"
#include "tests/worker/thread_replica.h"

namespace lockstep::testing {
namespace {

constexpr char kModel[] = "stories260K";
constexpr int kChunk = 30;  // of prompts

struct Layout {
  int tp = 1;
  int pp = 1;
};
constexpr Layout kLayouts[] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}};
constexpr int kMostRanks = 4;

// No test has devices of its own.
class Devices : public ::testing::Environment {
  void SetUp() override { cuda_emulation::SetDevice({.num_devices = kMostRanks}); }
};
const auto* const kDevices = ::testing::AddGlobalTestEnvironment(new Devices);

std::vector<Golden> ShortCases(const std::filesystem::path& model) {
  std::vector<Golden> cases = ReadGolden(model);
  std::erase_if(cases, [](const Golden& golden) { return golden.prompt.size() > 80; });
  EXPECT_FALSE(cases.empty());
  for (Golden& golden : cases) {
    golden.greedy_tokens.resize(std::min<size_t>(golden.greedy_tokens.size(), 12));
  }
  return cases;
}

std::vector<engine::StepResult> RunModel(const Layout& layout, const std::filesystem::path& model,
                                         const std::vector<engine::StepPlan>& plans,
                                         LoopOptions options) {
  std::vector<engine::StepResult> results;
  RunRanks(layout.tp, layout.pp, [&](int rank, RankGroups& host) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                     cuda::CudaBackend::Create({.device = rank, .compute = DType::kF32}));
    constexpr int64_t kHiddenSize = 64;
    ASSIGN_OR_RETURN(
        RankGroups groups,
        MakeDeviceGroups(lockstep_plugin()->accelerator->communicators(), *backend, host,
                         {.max_hidden_states = kLoopLimits.max_batched_tokens * kHiddenSize,
                          .bytes_back = TokenReturn::MessageBytes(kLoopLimits.max_num_seqs),
                          .notice = nullptr}));
    LoopOptions mine = options;
    mine.device_groups = &groups;
    return RunRank(model, {kModel, layout.tp, layout.pp, kChunk}, rank, *backend, host, plans,
                   results, mine);
  });
  return results;
}

TEST(CudaStepLoop, EqualsTheReference) {
  const std::filesystem::path model = SharedAssets() / "models" / kModel;
  SKIP_WITHOUT_ASSET(model);
  const std::vector<Golden> cases = ShortCases(model);
  const std::vector<engine::StepPlan> plans = PlansFor(cases, kChunk);
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 2}}) {
    int64_t num_steps_ahead = 0;
    ExpectGolden(RunModel(layout, model, plans, {.num_steps_ahead = &num_steps_ahead}), cases);
    // Every plan is there before the first runs.
    EXPECT_EQ(num_steps_ahead, static_cast<int64_t>(plans.size()) - 1);
  }
}

// The vocabulary is larger than the lists of candidates: without top_k, choices go deeper.
TEST(CudaStepLoop, SampledTextsAreThoseTheHostChooses) {
  const std::filesystem::path model = SharedAssets() / "models" / kModel;
  SKIP_WITHOUT_ASSET(model);
  std::vector<Golden> cases = ShortCases(model);
  for (Golden& golden : cases) golden.greedy_tokens.resize(6);
  struct Sampled {
    int32_t top_k;
    float repetition_penalty;
    Layout layout;
  };
  for (const Sampled& sampled : {Sampled{0, 1.0f, {1, 1}},
                                 {100, 1.2f, {1, 1}},
                                 {0, 1.2f, {1, 1}},
                                 {0, 1.0f, {2, 1}},
                                 {300, 1.2f, {1, 2}},
                                 {0, 1.2f, {2, 2}}}) {
    const auto params_of = [&](uint32_t slot) {
      SamplingParams params;
      params.temperature = 2.0f;
      params.seed = slot;
      params.top_k = sampled.top_k;
      params.top_p = slot % 2 == 0 ? 1.0f : 0.95f;
      params.repetition_penalty = sampled.repetition_penalty;
      return params;
    };
    const std::vector<engine::StepPlan> plans = PlansFor(cases, kChunk, params_of);
    int64_t num_steps_ahead = 0;
    const auto device =
        RunModel(sampled.layout, model, plans, {.num_steps_ahead = &num_steps_ahead});
    EXPECT_TRUE(device == RunModel(sampled.layout, model, plans, {.chooses_on_device = false}));
    EXPECT_EQ(num_steps_ahead, static_cast<int64_t>(plans.size()) - 1);
  }
}

// ---- a language model one can compute in one's head, on a device ----

StepLoopOptions Options(int64_t vocab_size = kFakeVocab) {
  return {.limits = {.max_batched_tokens = FakeDeviceStage::kMaxTokens,
                     .max_num_seqs = FakeDeviceStage::kMaxSeqs,
                     .max_model_len = 64,
                     .block_size = 4},
          .num_blocks = 2000,
          .vocab_size = vocab_size,
          .eos_token_ids = {2}};
}

struct LoopRun {
  std::vector<engine::StepResult> results;
  int64_t num_steps_ahead = 0;  // on the last stage
};

// Every plan is queued before the first runs.
template <typename Stage>
LoopRun RunPlans(const Layout& layout, const std::vector<engine::StepPlan>& plans,
                 int64_t vocab_size = kFakeVocab) {
  LoopRun run;
  std::mutex mutex;
  RunRanks(layout.tp, layout.pp, [&](int, RankGroups& groups) -> absl::Status {
    Stage stage(groups, vocab_size);
    FakeConstraints constraints(groups, vocab_size);
    StepLoopOptions options = Options(vocab_size);
    options.constraints = constraints.cache();
    RankProgress progress;
    StepLoop loop(options, stage.Calls(), groups, progress,
                  [&](engine::StepResult result) { run.results.push_back(std::move(result)); });
    PlanQueue queue;
    for (const engine::StepPlan& plan : plans) RETURN_IF_ERROR(queue.Push(plan));
    queue.Close();
    RETURN_IF_ERROR(loop.Run(queue));
    EXPECT_EQ(progress.Read().last_step, plans.size());
    std::lock_guard lock(mutex);
    run.num_steps_ahead = std::max(run.num_steps_ahead, loop.num_steps_ahead());
    return absl::OkStatus();
  });
  return run;
}

// Sums of exponentials differ by their rounding.
void ExpectNear(const LogprobInfo& got, const LogprobInfo& want) {
  EXPECT_NEAR(got.logprob, want.logprob, 1e-5);
  ASSERT_EQ(got.top.size(), want.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    EXPECT_EQ(got.top[i].token, want.top[i].token);
    EXPECT_NEAR(got.top[i].logprob, want.top[i].logprob, 1e-5);
  }
}

void ExpectSame(const engine::StepResult& got, const engine::StepResult& want) {
  SCOPED_TRACE(::testing::Message() << "step " << want.step_id);
  EXPECT_EQ(got.step_id, want.step_id);
  ASSERT_EQ(got.sampled.size(), want.sampled.size());
  for (size_t i = 0; i < got.sampled.size(); ++i) {
    EXPECT_EQ(got.sampled[i].slot, want.sampled[i].slot);
    EXPECT_EQ(got.sampled[i].token, want.sampled[i].token);
    ASSERT_EQ(got.sampled[i].logprobs.has_value(), want.sampled[i].logprobs.has_value());
    if (got.sampled[i].logprobs) ExpectNear(*got.sampled[i].logprobs, *want.sampled[i].logprobs);
  }
  ASSERT_EQ(got.prompt_logprobs.size(), want.prompt_logprobs.size());
  for (size_t i = 0; i < got.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(got.prompt_logprobs[i].slot, want.prompt_logprobs[i].slot);
    EXPECT_EQ(got.prompt_logprobs[i].first_position, want.prompt_logprobs[i].first_position);
    ASSERT_EQ(got.prompt_logprobs[i].logprobs.size(), want.prompt_logprobs[i].logprobs.size());
    for (size_t j = 0; j < got.prompt_logprobs[i].logprobs.size(); ++j) {
      ExpectNear(got.prompt_logprobs[i].logprobs[j], want.prompt_logprobs[i].logprobs[j]);
    }
  }
}

// The same results as with logits in the host's memory, in every layout; so many steps ran ahead.
void ExpectTheHosts(const std::vector<engine::StepPlan>& plans, int64_t num_steps_ahead,
                    std::span<const Layout> layouts = kLayouts, int64_t vocab_size = kFakeVocab) {
  const LoopRun host = RunPlans<FakeStage>({1, 1}, plans, vocab_size);
  EXPECT_EQ(host.num_steps_ahead, 0);
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(::testing::Message() << "tp " << layout.tp << ", pp " << layout.pp);
    const LoopRun device = RunPlans<FakeDeviceStage>(layout, plans, vocab_size);
    EXPECT_EQ(device.num_steps_ahead, num_steps_ahead);
    ASSERT_EQ(device.results.size(), plans.size());
    for (size_t i = 0; i < device.results.size(); ++i) {
      ExpectSame(device.results[i], host.results[i]);
    }
  }
}

std::vector<engine::StepPlan> Generation(const SamplingParams& params, int num_decodes) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  plan.Open(0, {3, 1, 4, 1, 5}, params).Grant(0, {0, 1, 2, 3, 4, 5, 6, 7});
  plans.push_back(plan.Chunk(0, 3, false).Take());
  plans.push_back(plan.Chunk(0, 2, true).Take());
  for (int i = 0; i < num_decodes; ++i) plans.push_back(plan.Decode(0).Take());
  return plans;
}

TEST(CudaStepLoop, StepsAreIssuedBeforeTheTokensTheyStartFromAreRead) {
  ExpectTheHosts(Generation(PlanWriter::Greedy(), 20), 20);
}

TEST(CudaStepLoop, PenaltiesCountTokensThatOnlyTheDeviceKnows) {
  SamplingParams params;
  params.temperature = 5.0f;
  params.top_k = 30;
  params.repetition_penalty = 3.0f;
  params.frequency_penalty = 1.5f;
  params.presence_penalty = 0.5f;
  params.num_logprobs = 3;
  for (uint64_t seed = 0; seed < 2; ++seed) {
    params.seed = seed;
    ExpectTheHosts(Generation(params, 20), 20);
  }
  // One that is not in the prompt's list, then is in it, then twice.
  params = PlanWriter::Greedy();
  params.frequency_penalty = 2.0f;
  ExpectTheHosts(Generation(params, 20), 20);
}

TEST(CudaStepLoop, PromptLogprobsAndMinimumLengthsRunAheadToo) {
  SamplingParams params;
  params.num_prompt_logprobs = 2;
  params.num_logprobs = 0;
  params.min_tokens = 6;
  params.stop_token_ids = {9, 10};
  params.logit_bias = {{17, 3.0f}};
  ExpectTheHosts(Generation(params, 10), 11);
}

// Steps that choose for them read their last tokens first; others run ahead as ever.
TEST(CudaStepLoop, ConstrainedOutputsAreThoseTheHostChooses) {
  SamplingParams sampled = Constrained({}, "([a-f]{2},)*[0-9]+;?");
  sampled.temperature = 5.0f;
  sampled.repetition_penalty = 1.5f;
  sampled.num_logprobs = 2;
  ExpectTheHosts(Generation(sampled, 20), 0);
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  plan.Open(0, {3, 1}, Constrained(PlanWriter::Greedy(), "[0-9]{20}")).Grant(0, {0, 1, 2, 3, 4});
  plan.Open(1, {5, 9}, sampled).Grant(1, {5, 6, 7, 8, 9});
  SamplingParams penalized = PlanWriter::Greedy();
  penalized.frequency_penalty = 2.0f;
  plan.Open(2, {7}, penalized).Grant(2, {10, 11, 12, 13, 14});
  plans.push_back(plan.Chunk(0, 2, true).Chunk(1, 2, true).Decode(2).Take());
  for (int i = 0; i < 6; ++i) plans.push_back(plan.Decode(0).Decode(2).Decode(1).Take());
  for (int i = 0; i < 4; ++i) plans.push_back(plan.Decode(2).Take());
  for (int i = 0; i < 3; ++i) plans.push_back(plan.Decode(1).Decode(2).Take());
  ExpectTheHosts(plans, 4);
}

constexpr int kNumGuesses = 5;

// The same tokens as Generation's: two at first, then with two guesses a step, of which the second
// is wrong in every other.
std::vector<engine::StepPlan> GuessedGeneration(const SamplingParams& params) {
  std::vector<int32_t> tokens;
  const LoopRun plain = RunPlans<FakeStage>({1, 1}, Generation(params, 3 * kNumGuesses + 2));
  for (const engine::StepResult& result : plain.results) {
    for (const engine::SampledToken& sampled : result.sampled) tokens.push_back(sampled.token);
  }
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  plan.Open(0, {3, 1, 4, 1, 5}, params).Grant(0, {0, 1, 2, 3, 4, 5, 6, 7});
  plans.push_back(plan.Chunk(0, 5, true).Take());
  plans.push_back(plan.Decode(0).Take());
  auto next = tokens.begin() + 2;
  for (int i = 0; i < kNumGuesses; ++i) {
    const bool is_right = i % 2 == 0;
    plans.push_back(plan.Guess(0, {next[0], is_right ? next[1] : next[1] ^ 1}).Take());
    plan.Settle(0, {next, next + (is_right ? 3 : 2)});
    next += is_right ? 3 : 2;
  }
  plans.push_back(plan.Decode(0).Take());
  plans.push_back(plan.Decode(0).Take());
  return plans;
}

TEST(CudaStepLoop, GuessesAreChosenAfterAsOnTheHost) {
  SamplingParams params;
  params.temperature = 5.0f;
  params.num_logprobs = 3;
  std::vector<engine::StepPlan> plans = GuessedGeneration(params);
  ExpectTheHosts(plans, std::ssize(plans) - 1);
  // Of guesses the host must know what comes before them.
  params.repetition_penalty = 3.0f;
  params.frequency_penalty = 1.5f;
  plans = GuessedGeneration(params);
  ExpectTheHosts(plans, std::ssize(plans) - 1 - kNumGuesses);
  plans = GuessedGeneration(Constrained(params, "([a-f]{2},)*[0-9]+;?"));
  ExpectTheHosts(plans, 0);
}

TEST(CudaStepLoop, SlotsChangeHandsWhileTheirTokensAreUnread) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  SamplingParams penalized = PlanWriter::Greedy();
  penalized.repetition_penalty = 2.0f;
  plans.push_back(plan.Open(0, {11}, penalized).Grant(0, {0, 1}).Decode(0).Take());
  plans.push_back(plan.Decode(0).Take());
  plan.Close(0).Open(0, {22, 23}, penalized).Grant(0, {0, 1}).Chunk(0, 2, true);
  plans.push_back(plan.Open(1, {5}).Grant(1, {2, 3}).Decode(1).Take());
  plans.push_back(plan.Close(0).Open(0, {33}).Grant(0, {0, 1}).Decode(0).Decode(1).Take());
  plans.push_back(plan.Decode(1).Take());
  plans.push_back(plan.Decode(1).Decode(0).Take());
  plans.push_back(plan.Close(1).Decode(0).Take());
  ExpectTheHosts(plans, 6);
}

// Steps of so many sequences, in one order and the other, and of a few of them.
std::vector<engine::StepPlan> StepsOfMany(uint32_t num_slots, SamplingParams params) {
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  for (uint32_t slot = 0; slot < num_slots; ++slot) {
    const auto block = static_cast<int32_t>(2 * slot);
    params.seed = slot;
    plan.Open(slot, {static_cast<int32_t>(slot) % 90}, params).Grant(slot, {block, block + 1});
    plan.Decode(slot);
  }
  plans.push_back(plan.Take());
  for (const uint32_t num_decodes : {num_slots, 5u, num_slots}) {
    for (uint32_t slot = num_decodes; slot > 0; --slot) plan.Decode(slot - 1);
    plans.push_back(plan.Take());
  }
  return plans;
}

// More rows than there are logits of at once.
TEST(CudaStepLoop, StepsOfManyRowsRunAhead) {
  SamplingParams params = PlanWriter::Greedy();
  params.repetition_penalty = 1.5f;
  params.frequency_penalty = 0.5f;
  params.num_logprobs = 1;
  ExpectTheHosts(StepsOfMany(45, params), 3);
}

// They come with log-probabilities of prompts: the host reads that step before the next.
TEST(CudaStepLoop, OfMoreRowsThanMayRunAheadEachGetsWhatTheHostGivesIt) {
  constexpr uint32_t kNumSlots = 3, kPrompt = 50;
  static_assert(kNumSlots * kPrompt > FakeDeviceStage::kMaxRowsAhead);
  SamplingParams params = PlanWriter::Greedy();
  params.num_prompt_logprobs = 2;
  PlanWriter plan;
  std::vector<engine::StepPlan> plans;
  for (uint32_t slot = 0; slot < kNumSlots; ++slot) {
    std::vector<int32_t> blocks(kPrompt / 4 + 3);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(20 * slot + i);
    plan.Open(slot, std::vector<int32_t>(kPrompt, 7), params);
    plan.Grant(slot, blocks).Chunk(slot, kPrompt, true);
  }
  plans.push_back(plan.Take());
  for (int i = 0; i < 3; ++i) plans.push_back(plan.Decode(0).Decode(2).Take());
  ExpectTheHosts(plans, 2);
}

// Deeper than summaries reach, of more rows than whole ones are chosen from at once.
TEST(CudaStepLoop, StepsOfManyRowsThatGoDeepRunAhead) {
  constexpr int64_t kVocab = 900;
  SamplingParams params;
  params.temperature = 5.0f;
  params.top_p = 0.9f;
  const Layout two[] = {{2, 1}};
  ExpectTheHosts(StepsOfMany(18, params), 3, two, kVocab);
  const Layout three[] = {{3, 1}};
  ExpectTheHosts(StepsOfMany(20, params), 3, three, kVocab);
  params.repetition_penalty = 1.5f;
  params.frequency_penalty = 0.5f;
  params.num_logprobs = 2;
  const Layout one_and_all[] = {{1, 1}, {2, 2}};
  ExpectTheHosts(StepsOfMany(10, params), 3, one_and_all, kVocab);
}

TEST(CudaStepLoop, AFailedQueueEndsItWithAStepOpen) {
  RunRanks(1, 1, [&](int, RankGroups& groups) {
    FakeDeviceStage stage(groups);
    RankProgress progress;
    PlanQueue queue;
    PlanWriter plan;
    int num_results = 0;
    const auto run = [&] {
      StepLoop loop(Options(), stage.Calls(), groups, progress, [&](engine::StepResult) {
        if (++num_results == 3) queue.Fail(absl::UnavailableError("gone"));
      });
      return loop.Run(queue);
    };
    for (const engine::StepPlan& plan : Generation(PlanWriter::Greedy(), 6)) {
      EXPECT_TRUE(queue.Push(plan).ok());
    }
    EXPECT_EQ(run().code(), absl::StatusCode::kUnavailable);
    // The next loop begins with a device that nobody waits for.
    PlanQueue next;
    std::vector<engine::StepResult> results;
    StepLoop loop(Options(), stage.Calls(), groups, progress,
                  [&](engine::StepResult result) { results.push_back(std::move(result)); });
    for (const engine::StepPlan& plan : Generation(PlanWriter::Greedy(), 6)) {
      EXPECT_TRUE(next.Push(plan).ok());
    }
    next.Close();
    EXPECT_TRUE(loop.Run(next).ok());
    EXPECT_TRUE(results ==
                RunPlans<FakeStage>({1, 1}, Generation(PlanWriter::Greedy(), 6)).results);
    return absl::OkStatus();
  });
}

// Whichever stage goes, in the midst of steps that were issued ahead: nobody goes on waiting.
TEST(CudaStepLoop, AStageThatGoesEndsTheOthersLoop) {
  const std::vector<engine::StepPlan> plans = Generation(PlanWriter::Greedy(), 20);
  for (const int leaver : {0, 1, 2}) {
    RunRanks(1, 3, [&](int rank, RankGroups& host) -> absl::Status {
      FakeDeviceStage stage(host);
      RETURN_IF_ERROR(host.pp->Barrier());  // nobody goes while others still connect
      RankProgress progress;
      StepLoop loop(Options(), stage.Calls(), host, progress, [](engine::StepResult) {});
      PlanQueue queue;
      const size_t num_plans = rank == leaver ? 5 : plans.size();
      for (size_t i = 0; i < num_plans; ++i) RETURN_IF_ERROR(queue.Push(plans[i]));
      queue.Close();
      const absl::Status ended = loop.Run(queue);
      if (rank == leaver) {
        EXPECT_TRUE(ended.ok()) << ended;
        stage.groups().pp->Abort();
      } else if (rank == 2) {
        EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
      }  // the others may have issued all there is
      return absl::OkStatus();
    });
  }
}

// ---- under the engine ----

class CudaEngineStepLoop : public ::testing::TestWithParam<Layout> {};

TEST_P(CudaEngineStepLoop, EachRequestGetsWhatTheHostGivesIt) {
  const std::vector<engine::EngineRequest> requests = RandomRequests(5, 30);
  ServeStats stats;
  const Outputs device = Serve<FakeDeviceStage>(
      {.tp = GetParam().tp, .pp = GetParam().pp, .num_blocks = 30}, requests, &stats);
  EXPECT_GT(stats.num_preemptions, 0u);
  EXPECT_GT(stats.num_steps_ahead, 0);
  EXPECT_EQ(device, Serve<FakeStage>({.tp = 1, .pp = 1, .num_blocks = 30}, requests));
}

TEST_P(CudaEngineStepLoop, GuessesChangeNoToken) {
  const std::vector<engine::EngineRequest> requests = RandomRequests(7, 30);
  ServeStats stats;
  const Outputs device = Serve<FakeDeviceStage>({.tp = GetParam().tp,
                                                 .pp = GetParam().pp,
                                                 .num_blocks = 60,
                                                 .max_draft_tokens = 5,
                                                 .max_num_seqs = 40},
                                                requests, &stats);
  EXPECT_EQ(device, Serve<FakeStage>({.tp = 1, .pp = 1, .num_blocks = 30}, requests));
  EXPECT_GT(stats.num_steps_ahead, 0);
  EXPECT_GT(stats.num_drafts_accepted, 50u);
  EXPECT_GT(stats.num_drafts_refused, 20u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaEngineStepLoop,
                         ::testing::Values(Layout{1, 1}, Layout{2, 1}, Layout{4, 1}, Layout{1, 2},
                                           Layout{2, 2}, Layout{1, 3}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tp) + "_pp" +
                                  std::to_string(info.param.pp);
                         });

}  // namespace
}  // namespace lockstep::testing
