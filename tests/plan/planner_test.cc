#include "deploy/plan/planner.h"

#include "deploy/plan/held_by_serve.h"
#include "deploy/plan/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

PlanRequest Request(const char* model, const char* gpu, const char* weights) {
  PlanRequest request = RequestFor(model, gpu, weights);
  request.gpus_per_node = request.gpu.gpus_per_node;
  request.usd_per_gpu_hour = 1.0;
  return request;
}

const Candidate* Find(const Plan& plan, int tp, int pp) {
  for (const Candidate& candidate : plan.candidates) {
    if (candidate.layout.tp == tp && candidate.layout.pp == pp) return &candidate;
  }
  return nullptr;
}

TEST(Planner, FourHundredFiveBillionInBf16TakesTwoNodesOfH100) {
  PlanRequest request = Request("llama-3.1-405b", "h100", "bf16");
  request.concurrency = 1;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_NE(plan->answer(), nullptr);
  EXPECT_EQ(plan->answer()->layout.tp, 8);
  EXPECT_EQ(plan->answer()->layout.pp, 2);
  EXPECT_EQ(plan->answer()->reserved_gpus, 16);
  const Candidate* node_groups = Find(*plan, 8, 2);
  const Candidate* across = Find(*plan, 16, 1);
  ASSERT_TRUE(node_groups != nullptr && node_groups->holds);
  ASSERT_TRUE(across != nullptr && across->holds);
  EXPECT_TRUE(across->tp_across_nodes);
  EXPECT_FALSE(Find(*plan, 8, 1)->holds);
  // Weights alone take 811.7 GB / 8 / 3.35 TB/s = 30.3 ms from one token to the next.
  EXPECT_GT(node_groups->prediction.tpot_ms, 30.0);
  EXPECT_LT(across->prediction.tpot_ms, node_groups->prediction.tpot_ms);
}

TEST(Planner, FourHundredFiveBillionInFp8TakesOneNodeOfH100) {
  PlanRequest request = Request("llama-3.1-405b", "h100", "fp8");
  request.concurrency = 16;
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr);
  EXPECT_EQ(plan->answer()->layout.gpus(), 8);
  EXPECT_EQ(plan->answer()->nodes, 1);
}

TEST(Planner, SaysWhatBindsAndWhatWouldRelaxIt) {
  PlanRequest request = Request("llama-3.1-70b", "h100", "bf16");
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok() && plan->answer() != nullptr);
  EXPECT_NE(plan->binding, Constraint::kNone);
  ASSERT_FALSE(plan->relaxations.empty());
  EXPECT_LT(plan->relaxations[0].gpus, plan->answer()->reserved_gpus);
}

TEST(Planner, LimitsOfLatencyAreKept) {
  PlanRequest request = Request("llama-3.1-8b", "h100", "bf16");
  request.concurrency = 200;
  const double free = MakePlan(request)->answer()->prediction.tpot_p95_ms;
  request.tpot_p95_ms = free / 2;
  const auto plan = MakePlan(request);
  ASSERT_NE(plan->answer(), nullptr);
  EXPECT_LE(plan->answer()->prediction.tpot_p95_ms, free / 2);
  EXPECT_GT(plan->answer()->layout.gpus(), 1);
  request.tpot_p95_ms = 0.01;
  EXPECT_EQ(MakePlan(request)->answer(), nullptr);
  EXPECT_EQ(MakePlan(request)->binding, Constraint::kTpot);
}

TEST(Planner, RateNeedsMoreReplicasThanOneServes) {
  PlanRequest request = Request("llama-3.1-8b", "h100", "bf16");
  request.rate_per_s = 1;
  const int few = MakePlan(request)->answer()->layout.gpus();
  request.rate_per_s = 200;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  EXPECT_GT(plan.answer()->layout.gpus(), few);
  EXPECT_NEAR(plan.answer()->prediction.requests_per_s * plan.answer()->layout.replicas, 200, 1);
}

// Every token of prompt and output passes all parameters but the embedding once.
double FlopsPerSecondOfAGpu(const Plan& plan) {
  const PlanRequest& request = plan.request;
  const Candidate& answer = *plan.answer();
  const double tokens_per_s = answer.prediction.output_tokens_per_s *
                              (1.0 + request.input_tokens / request.output_tokens) /
                              answer.layout.ranks();
  return 2.0 * static_cast<double>(request.model.architecture.num_active_parameters()) *
         tokens_per_s;
}

TEST(Planner, NoSpeedIsAboveWhatTheGpuMultiplies) {
  for (const char* gpu : {"a100", "rtx-4090", "h100", "b200"}) {
    for (const char* weights : {"f32", "bf16", "fp8", "int8", "int4", "nvfp4"}) {
      PlanRequest request = Request("llama-3.1-70b", gpu, weights);
      request.input_tokens = 2000;
      request.output_tokens = 10;
      request.concurrency = 256;
      const auto plan = MakePlan(request);
      ASSERT_TRUE(plan.ok() && plan->answer() != nullptr) << gpu << " " << weights;
      EXPECT_LT(FlopsPerSecondOfAGpu(*plan), request.gpu.FlopsOf(request.weights.operands))
          << gpu << " " << weights;
    }
  }
}

TEST(Planner, EightBitsSaveMemoryButNoArithmeticWhereTheGpuLacksThem) {
  const auto prompt_ms = [](const char* gpu, const char* weights) {
    PlanRequest request = Request("llama-3.1-8b", gpu, weights);
    request.input_tokens = 8000;  // bound by arithmetic
    request.concurrency = 1;
    request.tp = 1;
    request.pp = 1;
    return MakePlan(request)->answer()->prediction.ttft_ms;
  };
  EXPECT_NEAR(prompt_ms("a100", "fp8"), prompt_ms("a100", "bf16"),
              0.05 * prompt_ms("a100", "bf16"));
  EXPECT_LT(prompt_ms("a100", "int8"), 0.8 * prompt_ms("a100", "bf16"));
  EXPECT_LT(prompt_ms("h100", "fp8"), 0.8 * prompt_ms("h100", "bf16"));
}

TEST(Planner, RequestsThatDoNotDivideAreNotRoundedUp) {
  const auto plan = [](double concurrency) {
    PlanRequest request = Request("llama-3.1-70b", "h100", "bf16");
    request.tp = 1;
    request.pp = 2;
    request.concurrency = concurrency;
    return *MakePlan(request);
  };
  const Plan of_eight = plan(8);
  const Plan of_nine = plan(9);
  const Candidate& eight = *of_eight.answer();
  const Candidate& nine = *of_nine.answer();
  ASSERT_EQ(eight.layout.replicas, 3);
  ASSERT_EQ(nine.layout.replicas, 3);
  // Two replicas with three requests, one with two: as slow, fewer tokens, each of them dearer.
  EXPECT_EQ(eight.prediction.tpot_ms, nine.prediction.tpot_ms);
  EXPECT_NEAR(eight.output_tokens_per_s / nine.output_tokens_per_s, 8.0 / 9, 0.02);
  EXPECT_GT(eight.usd_per_million_tokens, 1.1 * nine.usd_per_million_tokens);
}

TEST(Planner, LargerLoadNeverNeedsFewerGpus) {
  PlanRequest request = Request("qwen3-30b-a3b", "a100", "bf16");
  int before = 0;
  for (request.concurrency = 1; request.concurrency < 3000; request.concurrency *= 3) {
    const auto plan = MakePlan(request);
    ASSERT_TRUE(plan.ok() && plan->answer() != nullptr) << request.concurrency;
    EXPECT_GE(plan->answer()->reserved_gpus, before);
    before = plan->answer()->reserved_gpus;
  }
}

TEST(Planner, RefusesNonsenseInOneLine) {
  const auto message = [](auto change) {
    PlanRequest request = Request("llama-3-8b", "h100", "bf16");
    change(request);
    const std::string text(MakePlan(request).status().message());
    EXPECT_EQ(text.find('\n'), std::string::npos);
    return text;
  };
  EXPECT_THAT(message([](PlanRequest& r) { r.max_nodes = 0; }), HasSubstr("nodes is 0"));
  EXPECT_THAT(message([](PlanRequest& r) { r.context = 9000; }),
              HasSubstr("exceeds the 8192 positions"));
  EXPECT_THAT(message([](PlanRequest& r) { r.context = 100; }), HasSubstr("exceed the context"));
  EXPECT_THAT(message([](PlanRequest& r) {
                r.input_tokens = 8000;
                r.output_tokens = 1000;
              }),
              HasSubstr("exceed the 8192 positions"));
  EXPECT_THAT(message([](PlanRequest& r) { r.expert_parallel = true; }),
              HasSubstr("llama-3-8b has no experts"));
  EXPECT_THAT(message([](PlanRequest& r) { r.tp = 3; }), HasSubstr("does not divide num_heads"));
  EXPECT_THAT(message([](PlanRequest& r) {
                r.tp = 8;
                r.pp = 32;
                r.max_nodes = 1;
              }),
              HasSubstr("needs 256 GPUs; 8 are allowed"));
  EXPECT_THAT(message([](PlanRequest& r) { r.concurrency = std::nan(""); }),
              HasSubstr("concurrency is nan"));
}

TEST(Planner, EveryLayoutHasAVerdict) {
  for (const char* model : {"llama-3.1-405b", "deepseek-v3", "qwen2.5-0.5b"}) {
    const auto plan = MakePlan(Request(model, "h100", "fp8"));
    ASSERT_TRUE(plan.ok());
    EXPECT_GT(plan->candidates.size(), 10u);
    for (const Candidate& candidate : plan->candidates) {
      EXPECT_NE(candidate.holds, !candidate.reason.empty()) << candidate.reason;
    }
  }
}

TEST(Report, LaunchesWhatAShellUnderstands) {
  PlanRequest request = Request("llama-3.1-8b", "h100", "bf16");
  EXPECT_THAT(LaunchCommand(*MakePlan(request)), HasSubstr("serve /models/llama-3.1-8b --tp"));
  request.model.source = "/data/my model's/config.json";
  EXPECT_THAT(LaunchCommand(*MakePlan(request)), HasSubstr("serve '/data/my model'\\''s' --tp"));
}

TEST(Report, LaunchesWhatWasPlanned) {
  const auto command = [](auto change) {
    PlanRequest request = Request("llama-3.1-8b", "h100", "bf16");
    change(request);
    return LaunchCommand(*MakePlan(request));
  };
  const std::string usual = command([](PlanRequest&) {});
  EXPECT_THAT(usual, HasSubstr("--max-num-seqs 64 "));
  EXPECT_THAT(usual, HasSubstr("--max-batched-tokens 8192"));
  EXPECT_THAT(usual, Not(HasSubstr("--block-size")));
  // Ranks size it by what steps leave of their memory: what is modelled may not fit.
  EXPECT_THAT(usual, Not(HasSubstr("--num-kv-blocks")));
  EXPECT_THAT(usual, Not(HasSubstr("--gpu-memory-utilization")));
  EXPECT_THAT(command([](PlanRequest& r) { r.memory.block_size = 64; }),
              HasSubstr("--block-size 64"));
  EXPECT_THAT(command([](PlanRequest& r) { r.memory.utilization = 0.95; }),
              HasSubstr("--gpu-memory-utilization 0.95"));
  EXPECT_THAT(command([](PlanRequest& r) { r.engine.max_batched_tokens = 2048; }),
              Not(HasSubstr("--max-batched-tokens")));
  // What `serve` refuses is no plan.
  PlanRequest all = Request("llama-3.1-8b", "h100", "bf16");
  all.memory.utilization = 1.0;
  EXPECT_THAT(std::string(MakePlan(all).status().message()),
              HasSubstr("utilization is 1; it must be from 0.05 to 0.99"));
}

TEST(Report, OfARateLaunchesWhatWasSimulated) {
  PlanRequest request = Request("llama-3.1-8b", "h100", "bf16");
  request.rate_per_s = 5;
  Plan plan = *MakePlan(request);
  const double mean = plan.answer()->load_per_replica;
  EXPECT_LT(mean, 64);
  EXPECT_EQ(MaxNumSeqs(plan.request, *plan.answer()), 256);
  EXPECT_THAT(LaunchCommand(plan), HasSubstr("--max-num-seqs 256 "));
  // Thirty that come at once: as many as may run at the same time tell when the last begins.
  const ArrivalStream burst{std::vector<Arrival>(30, Arrival{0, 2000, 500})};
  const double together = SimulateReplica(plan.request, *plan.answer(), burst).ttft_p95_ms;
  plan.request.engine.max_running = 2;
  EXPECT_THAT(LaunchCommand(plan), HasSubstr("--max-num-seqs 2 "));
  EXPECT_GT(SimulateReplica(plan.request, *plan.answer(), burst).ttft_p95_ms, 5 * together);
  // Twice the mean: arrivals bunch.
  Candidate busy = *plan.answer();
  busy.load_per_replica = 300;
  EXPECT_EQ(MaxNumSeqs(request, busy), 600);
}

TEST(Report, SaysWhyServeCannotBeStarted) {
  const auto launch = [](const char* model, const char* gpu, const char* weights, auto change) {
    PlanRequest request = Request(model, gpu, weights);
    request.concurrency = 1;
    change(request);
    const Plan plan = *MakePlan(request);
    EXPECT_NE(plan.answer(), nullptr);
    EXPECT_EQ(LaunchCommand(plan).empty(), !plan.not_served.empty());
    const auto json = nlohmann::json::parse(PlanJson(plan, {}));
    EXPECT_EQ(json["answer"]["launch"].is_null(), !plan.not_served.empty());
    const std::string text = PlanText(plan);
    const size_t begin = text.find("\nLaunch ");
    return text.substr(begin, text.find('\n', begin + 1) - begin);
  };
  const auto as_it_is = [](PlanRequest&) {};
  const char* llama = "llama-3.1-8b";
  EXPECT_THAT(launch(llama, "h100", "fp8", as_it_is), HasSubstr("--quantize fp8"));
  EXPECT_THAT(launch(llama, "a100", "fp8", as_it_is), HasSubstr("compute capability 8.9"));
  EXPECT_THAT(launch(llama, "h100", "int4", as_it_is), HasSubstr("hold weights in int4 on GPUs"));
  EXPECT_THAT(launch("deepseek-v2-lite", "h100", "bf16", as_it_is),
              HasSubstr("this kind of model (deepseek_v2)"));
  EXPECT_THAT(launch(llama, "mi300x", "bf16", as_it_is), HasSubstr("CUDA alone, which AMD"));
  const auto kv = [](const char* name) {
    return [name](PlanRequest& r) { r.kv = *FindKvFormat(name); };
  };
  EXPECT_THAT(launch(llama, "h100", "bf16", kv("fp8")), HasSubstr("in bf16, not in fp8"));
  EXPECT_THAT(launch(llama, "h100", "bf16", kv("f32")), HasSubstr("in bf16, not in f32"));
  EXPECT_THAT(launch(llama, "h100", "f32", kv("f32")), HasSubstr("--dtype f32"));
  EXPECT_THAT(launch(llama, "h100", "bf16", [](PlanRequest& r) { r.policy.budget_tokens = 512; }),
              HasSubstr("--kv-budget"));
  EXPECT_THAT(launch(llama, "h100", "bf16", [](PlanRequest& r) { r.policy.read_tokens = 512; }),
              HasSubstr("--kv-read"));
  EXPECT_THAT(
      launch(llama, "h100", "bf16", [](PlanRequest& r) { r.model.architecture.layers_per_kv = 4; }),
      HasSubstr("--layers-per-kv"));
}

// The 405B with quantization_config.
Model Stored405b(const nlohmann::json& quantization_config) {
  Model model = *LoadModel("llama-3.1-405b");
  auto config = nlohmann::json::parse(ModelConfigJson(*model.architecture.runtime_config));
  config["quantization_config"] = quantization_config;
  model.architecture = *ParseArchitecture(config.dump());
  return model;
}

// As Meta's list has it: attention, and the MLPs of the first and the last layer.
nlohmann::json MetasFp8() {
  nlohmann::json spared = nlohmann::json::array();
  for (int layer = 0; layer < 126; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    for (const char* name : {"q", "k", "v", "o"}) {
      spared.push_back(prefix + ".self_attn." + name + "_proj");
    }
    if (layer > 0 && layer < 125) continue;
    for (const char* name : {"gate", "up", "down"}) {
      spared.push_back(prefix + ".mlp." + name + "_proj");
    }
  }
  return {{"quant_method", "fbgemm_fp8"},
          {"activation_scale_ub", 1200.0},
          {"modules_to_not_convert", spared}};
}

TEST(Report, LaunchesCheckpointsInFp8AsTheyAre) {
  const nlohmann::json compressed = {
      {"quant_method", "compressed-tensors"},
      {"format", "float-quantized"},
      {"ignore", {"lm_head"}},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear"}},
          {"weights", {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}}}}}}}};
  for (const auto& [stored, format] :
       {std::pair(MetasFp8(), "fp8-mlp"), std::pair(compressed, "fp8")}) {
    PlanRequest request = Request("llama-3.1-405b", "h100", format);
    request.model = Stored405b(stored);
    request.concurrency = 16;
    EXPECT_EQ(request.model.architecture.stored_weights, format);
    const Plan plan = *MakePlan(request);
    EXPECT_EQ(plan.not_served, "");
    EXPECT_THAT(LaunchCommand(plan), HasSubstr("--tp 8 --pp 1 --max-model-len"));
    EXPECT_FALSE(nlohmann::json::parse(PlanJson(plan, {}))["answer"]["launch"].is_null());
  }
}

// A rank of eight has 2,304 rows of q, k and v, 2,048 columns of o_proj, and 6,656 of what lies
// between the MLP's matrices; scales and norms are f32.
TEST(Report, CountsWhatMetasFp8Leaves) {
  PlanRequest request = Request("llama-3.1-405b", "h100", "fp8-mlp");
  request.model = Stored405b(MetasFp8());
  request.concurrency = 16;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
  ASSERT_EQ(plan.answer()->layout.tp, 8);
  constexpr int64_t kHidden = 16384, kInner = 53248 / 8, kLayers = 126;
  constexpr int64_t kAttention = 2 * (2304 * kHidden + kHidden * 2048);
  constexpr int64_t kWideMlp = 2 * 3 * kInner * kHidden;
  constexpr int64_t kNarrowMlp = 3 * kInner * kHidden + 4 * (2 * kInner + kHidden);
  constexpr int64_t kNorm = 4 * kHidden;
  constexpr int64_t kTable = 2 * 128256 / 8 * kHidden;
  EXPECT_EQ(plan.answer()->memory.stages[0].weights.total(),
            kLayers * (kAttention + 2 * kNorm) + 2 * kWideMlp + (kLayers - 2) * kNarrowMlp +
                2 * kTable + kNorm);
}

TEST(Report, SaysWhatKeepsACheckpointFromLoading) {
  PlanRequest request = Request("llama-3.1-405b", "h100", "fp8");
  request.model = Stored405b({{"quant_method", "fp8"}, {"activation_scheme", "static"}});
  const Plan plan = *MakePlan(request);
  EXPECT_THAT(plan.not_served, HasSubstr("does not load this checkpoint: "));
  EXPECT_THAT(plan.not_served, HasSubstr("quant_method = \"fp8\" is not supported"));
}

TEST(Report, SaysHowManyReplicasServeHas) {
  const PlanRequest request = Request("llama-3.1-8b", "h100", "bf16");
  Candidate candidate;
  candidate.layout.replicas = 256;
  EXPECT_EQ(WhyNotServed(request, candidate), "");
  candidate.layout.replicas = 257;
  EXPECT_THAT(WhyNotServed(request, candidate), HasSubstr("at most 256 replicas"));
}

TEST(Report, AdvisesFirstWhatServeCanFollow) {
  for (const char* gpu : {"a100", "h100"}) {
    const Plan plan = *MakePlan(Request("llama-3.1-70b", gpu, "bf16"));
    bool served_are_over = false;
    for (const Relaxation& relaxation : plan.relaxations) {
      const bool is_fp8 = relaxation.change == "--weights fp8";
      const bool is_served =
          !relaxation.change.starts_with("--weights") && !relaxation.change.starts_with("--kv");
      EXPECT_EQ(relaxation.not_served.empty(), is_served || (is_fp8 && gpu[0] == 'h'))
          << gpu << " " << relaxation.change;
      served_are_over |= !relaxation.not_served.empty();
      EXPECT_EQ(!relaxation.not_served.empty(), served_are_over) << relaxation.change;
    }
    EXPECT_THAT(PlanText(plan), HasSubstr(", but `serve` "));
  }
  // Of a plan for another engine it does not matter.
  const Plan of_another = *MakePlan(Request("llama-3.1-70b", "mi300x", "bf16"));
  EXPECT_FALSE(of_another.relaxations.empty());
  EXPECT_THAT(PlanText(of_another), Not(HasSubstr(", but `serve` ")));
}

TEST(Report, AdvisesWholeFormats) {
  PlanRequest request = Request("llama-3.1-8b", "h100", "f32");
  request.kv = *FindKvFormat("f32");
  const Plan plan = *MakePlan(request);
  ASSERT_GE(plan.relaxations.size(), 2u);
  EXPECT_EQ(plan.relaxations[0].change, "--weights bf16 --kv bf16");
  EXPECT_EQ(plan.relaxations[1].change, "--weights fp8 --kv bf16");
  EXPECT_EQ(plan.relaxations[1].not_served, "");
}

TEST(Report, AnswersFirstAndInJsonToo) {
  PlanRequest request = Request("llama-3.1-405b", "h100", "bf16");
  const auto plan = MakePlan(request);
  const std::string text = PlanText(*plan);
  EXPECT_TRUE(text.starts_with("Answer    16 GPUs h100-sxm-80g on 2 nodes: tp 8 x pp 2")) << text;
  const auto json = nlohmann::json::parse(PlanJson(*plan, ParetoPoints(*plan)));
  EXPECT_EQ(json["answer"]["tp"], 8);
  EXPECT_EQ(json["layouts"].size(), plan->candidates.size());
  int num_answers = 0;
  double front = 0;  // ascends with TPOT
  for (const auto& point : json["chart"]) {
    num_answers += point["is_answer"].get<bool>() ? 1 : 0;
    if (!point["on_front"].get<bool>()) continue;
    EXPECT_GT(point["tokens_per_s_per_gpu"].get<double>(), front);
    front = point["tokens_per_s_per_gpu"].get<double>();
  }
  EXPECT_GT(front, 0);
  EXPECT_GE(num_answers, 1);
  for (const auto& stage : json["answer"]["stages"]) {
    int64_t sum = 0;
    for (const char* part :
         {"layer_bytes", "expert_bytes", "embedding_bytes", "lm_head_bytes", "activation_bytes",
          "communication_bytes", "runtime_bytes", "reserve_bytes", "kv_budget_bytes"}) {
      sum += stage[part].get<int64_t>();
    }
    EXPECT_EQ(sum, stage["capacity_bytes"].get<int64_t>());
  }
}

}  // namespace
}  // namespace lockstep::plan
