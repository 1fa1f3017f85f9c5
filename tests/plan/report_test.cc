#include "deploy/plan/report.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "deploy/plan/held_by_serve.h"
#include "deploy/plan/planner.h"
#include "deploy/plan/replica_queue.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Report, LaunchesWhatAShellUnderstands) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  EXPECT_THAT(LaunchCommand(*MakePlan(request)), HasSubstr("serve /models/llama-3.1-8b --tp"));
  request.model.directory = "/data/my model's";
  EXPECT_THAT(LaunchCommand(*MakePlan(request)), HasSubstr("serve '/data/my model'\\''s' --tp"));
}

// With the directory that was named, from wherever one looks.
TEST(Report, LaunchesTheDirectoryOfAConfig) {
  const auto directory = std::filesystem::path(::testing::TempDir()) / "m8";
  std::filesystem::create_directories(directory);
  for (const char* name : {"config.json", "other.json"}) {
    std::ofstream(directory / name)
        << ModelConfigJson(*LoadModel("llama-3.1-8b")->architecture.runtime_config);
  }
  EXPECT_EQ(LoadModel(directory)->directory, directory);
  EXPECT_EQ(LoadModel(directory / "other.json")->directory, directory);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory);
  for (const char* path : {"config.json", "./other.json", "."}) {
    PlanRequest request = PricedRequest(path, "h100", "bf16");
    EXPECT_THAT(LaunchCommand(*MakePlan(request)), HasSubstr("serve . --tp")) << path;
  }
  std::filesystem::current_path(before);
}

TEST(Report, LaunchesWholeGroupsOnEachNode) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.gpus_per_node = 6;
  request.tp = 4;
  request.pp = 2;
  EXPECT_THAT(LaunchCommand(*MakePlan(request)),
              HasSubstr("sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 "));
}

TEST(Report, AnUnknownPriceIsNone) {
  PlanRequest request = PricedRequest("llama-3.1-70b", "h100", "bf16");
  const auto prices = [&] {
    const auto json = nlohmann::json::parse(PlanJson(*MakePlan(request), {}));
    EXPECT_FALSE(json["relaxations"].empty());
    return std::vector<nlohmann::json>{
        json["answer"]["usd_per_hour"], json["answer"]["usd_per_million_output_tokens"],
        json["relaxations"][0]["usd_per_hour"], json["request"]["usd_per_gpu_hour"]};
  };
  request.usd_per_gpu_hour = 0.0;
  for (const nlohmann::json& price : prices()) EXPECT_EQ(price, 0.0);
  EXPECT_THAT(PlanText(*MakePlan(request)), HasSubstr("$0.00 per hour"));
  request.usd_per_gpu_hour = std::nullopt;
  for (const nlohmann::json& price : prices()) EXPECT_TRUE(price.is_null()) << price;
  EXPECT_THAT(PlanText(*MakePlan(request)), HasSubstr("no price per hour"));
}

TEST(Report, AnswersOfOneTokenHaveNoChart) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.output_tokens = 1;
  const Plan plan = *MakePlan(request);
  EXPECT_TRUE(ParetoPoints(plan).empty());
  EXPECT_THAT(PlanText(plan), Not(HasSubstr("nan")));
}

TEST(Report, LaunchesWhatWasPlanned) {
  const auto command = [](auto change) {
    PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
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
  PlanRequest all = PricedRequest("llama-3.1-8b", "h100", "bf16");
  all.memory.utilization = 1.0;
  EXPECT_THAT(std::string(MakePlan(all).status().message()),
              HasSubstr("utilization is 1; it must be from 0.05 to 0.99"));
}

TEST(Report, OfARateLaunchesWhatWasSimulated) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  request.rate_per_s = 5;
  Plan plan = *MakePlan(request);
  const double mean = plan.answer()->load_per_replica;
  EXPECT_LT(mean, 64);
  EXPECT_EQ(MaxNumSeqs(plan.request, *plan.answer()), 256);
  EXPECT_THAT(LaunchCommand(plan), HasSubstr("--max-num-seqs 256 "));
  // Thirty that come at once: as many as may run at the same time tell when the last begins.
  const std::vector<Arrival> burst(30, Arrival{0, 2000, 500});
  const double together = SimulateReplica(plan.request, *plan.answer(), burst).ttft_p95_ms;
  plan.request.engine.max_running = 2;
  EXPECT_THAT(LaunchCommand(plan), HasSubstr("--max-num-seqs 2 "));
  EXPECT_GT(SimulateReplica(plan.request, *plan.answer(), burst).ttft_p95_ms, 5 * together);
  // Twice the mean: arrivals bunch.
  Candidate busy = *plan.answer();
  busy.load_per_replica = 300;
  EXPECT_EQ(MaxNumSeqs(request, busy), 600);
}

// What it says of an answer's speed is what its queue was measured to be.
TEST(Report, SpeedAtARateIsTheQueues) {
  const PlanRequest request =
      AtRate(PricedRequest("llama-3.1-405b", "h200", "fp8"), 8, {0.2, 16000, 100});
  const Plan plan = *MakePlan(request);
  ASSERT_TRUE(plan.answer() != nullptr && plan.queue.has_value());
  EXPECT_GT(plan.queue->tpot_p95_ms, 2 * plan.queue->tpot_p50_ms);
  EXPECT_THAT(PlanText(plan),
              HasSubstr(absl::StrFormat("TPOT %.1f ms (p95 %.1f), ", plan.queue->tpot_p50_ms,
                                        plan.queue->tpot_p95_ms)));
  const auto json = nlohmann::json::parse(PlanJson(plan, {}));
  EXPECT_EQ(json["answer"]["tpot_p95_ms"], json["answer"]["queue"]["tpot_p95_ms"]);
  EXPECT_EQ(json["answer"]["ttft_p95_ms"], json["answer"]["queue"]["ttft_p95_ms"]);
  EXPECT_TRUE(json["request"]["concurrency"].is_null());
  EXPECT_EQ(json["request"]["tp"], 8);
  EXPECT_TRUE(json["request"]["ttft_p95_limit_ms"].is_null());
}

TEST(Report, SaysWhatFewMoreGpusWouldGive) {
  PlanRequest request = PricedRequest("llama-3.1-70b", "h100", "bf16");
  request.concurrency = 64;
  const std::string text = PlanText(*MakePlan(request));
  EXPECT_THAT(text, HasSubstr("Answer    3 GPUs"));
  EXPECT_THAT(text, HasSubstr("Faster    4 GPUs: tp 4 x pp 1: "));
  request.concurrency = 1;
  request.tp = 8;
  EXPECT_THAT(PlanText(*MakePlan(request)), Not(HasSubstr("Faster")));
}

TEST(Report, SaysWhyServeCannotBeStarted) {
  const auto launch = [](const char* model, const char* gpu, const char* weights, auto change) {
    PlanRequest request = PricedRequest(model, gpu, weights);
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
  EXPECT_THAT(launch(llama, "h100", "bf16", kv("fp8")), HasSubstr("--kv-cache-dtype fp8"));
  EXPECT_THAT(launch(llama, "h100", "bf16", kv("int8")), HasSubstr("in bf16 or fp8, not in int8"));
  EXPECT_THAT(launch(llama, "h100", "bf16", kv("f32")), HasSubstr("in bf16 or fp8, not in f32"));
  EXPECT_THAT(launch(llama, "h100", "f32", kv("f32")), HasSubstr("--dtype f32"));
  EXPECT_THAT(launch(llama, "h100", "bf16", [](PlanRequest& r) { r.policy.budget_tokens = 512; }),
              HasSubstr("--kv-budget"));
  EXPECT_THAT(launch(llama, "h100", "bf16", [](PlanRequest& r) { r.policy.read_tokens = 512; }),
              HasSubstr("--kv-read"));
  EXPECT_THAT(
      launch(llama, "h100", "bf16", [](PlanRequest& r) { r.model.architecture.layers_per_kv = 4; }),
      HasSubstr("--layers-per-kv"));
}

// The 405B with quantization_config, or as older files call it.
Model Stored405b(const nlohmann::json& quantization_config,
                 const char* field = "quantization_config") {
  Model model = *LoadModel("llama-3.1-405b");
  auto config = nlohmann::json::parse(ModelConfigJson(*model.architecture.runtime_config));
  config[field] = quantization_config;
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
  EXPECT_EQ(Stored405b(compressed, "compression_config").architecture.stored_weights, "fp8");
  for (const auto& [stored, format] :
       {std::pair(MetasFp8(), "fp8-mlp"), std::pair(compressed, "fp8")}) {
    PlanRequest request = PricedRequest("llama-3.1-405b", "h100", format);
    request.model = Stored405b(stored);
    request.tp = 8;
    request.pp = 1;
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
  PlanRequest request = PricedRequest("llama-3.1-405b", "h100", "fp8-mlp");
  request.model = Stored405b(MetasFp8());
  request.tp = 8;
  request.pp = 1;
  request.concurrency = 16;
  const Plan plan = *MakePlan(request);
  ASSERT_NE(plan.answer(), nullptr);
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
  PlanRequest request = PricedRequest("llama-3.1-405b", "h100", "fp8");
  Model model = Stored405b({{"quant_method", "fp8"}});
  auto config = nlohmann::json::parse(ModelConfigJson(*model.architecture.runtime_config));
  config["rope_scaling"] = {{"rope_type", "longrope"}};
  request.model.architecture = *ParseArchitecture(config.dump());
  const Plan plan = *MakePlan(request);
  EXPECT_THAT(plan.not_served, HasSubstr("does not load this checkpoint: "));
  EXPECT_THAT(plan.not_served, HasSubstr("rope_type = \"longrope\" is not supported"));
}

// In blocks, ranks hold it as numbers, or quantized anew when they are told to.
TEST(Report, LaunchesFp8InBlocksWithAQuantization) {
  const Model model = Stored405b({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}});
  EXPECT_EQ(model.architecture.stored_weights, "fp8");
  for (const auto& [format, flags] :
       {std::pair("fp8", "--quantize fp8"), {"bf16", "--dtype bf16"}}) {
    PlanRequest request = PricedRequest("llama-3.1-405b", "h100", format);
    request.model = model;
    request.tp = 8;
    request.pp = 2;
    request.concurrency = 4;
    const Plan plan = *MakePlan(request);
    EXPECT_EQ(plan.not_served, "");
    EXPECT_THAT(LaunchCommand(plan), HasSubstr(flags));
  }
}

TEST(Report, LaunchesWithAnFp8Cache) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  const int64_t kept = MakePlan(request)->answer()->memory.stages[0].kv_bytes_per_token;
  EXPECT_THAT(LaunchCommand(*MakePlan(request)), Not(HasSubstr("--kv-cache-dtype")));
  request.kv = *FindKvFormat("fp8");
  const Plan plan = *MakePlan(request);
  EXPECT_EQ(plan.not_served, "");
  EXPECT_EQ(2 * plan.answer()->memory.stages[0].kv_bytes_per_token, kept);
  EXPECT_THAT(LaunchCommand(plan), HasSubstr(" --kv-cache-dtype fp8"));
  // Where the kernels have no heads of that size.
  request.model.architecture.runtime_config->head_dim = 72;
  EXPECT_THAT(MakePlan(request)->not_served, HasSubstr("heads of 72 over a KV cache in fp8"));
  request.kv = *FindKvFormat("bf16");
  EXPECT_EQ(MakePlan(request)->not_served, "");
  request.model.architecture.runtime_config->head_dim = 256;
  EXPECT_THAT(MakePlan(request)->not_served, HasSubstr("heads of 256 over a KV cache in bf16"));
}

TEST(Report, LaunchesTheFamiliesThatServeLoads) {
  for (const char* model : {"mistral-7b-v0.1", "qwen2.5-7b", "qwen3-8b"}) {
    const PlanRequest request = PricedRequest(model, "h100", "bf16");
    EXPECT_EQ(MakePlan(request)->not_served, "") << model;
  }
  EXPECT_THAT(MakePlan(PricedRequest("qwen3-30b-a3b", "h100", "bf16"))->not_served,
              HasSubstr("does not serve this kind of model (qwen3_moe)"));
  // YaRN's positions are planned, too.
  auto config =
      nlohmann::json::parse(ModelConfigJson(*LoadModel("qwen3-8b")->architecture.runtime_config));
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  PlanRequest stretched = PricedRequest("qwen3-8b", "h100", "bf16");
  stretched.model.architecture = *ParseArchitecture(config.dump());
  stretched.context = 100'000;
  stretched.concurrency = 1;
  EXPECT_EQ(MakePlan(stretched)->not_served, "");
  // One that sees 4,096 tokens back, of 32,768 positions.
  PlanRequest longer = PricedRequest("mistral-7b-v0.1", "h100", "bf16");
  longer.context = 4096;
  EXPECT_EQ(MakePlan(longer)->not_served, "");
  longer.context = 4097;
  EXPECT_THAT(MakePlan(longer)->not_served,
              HasSubstr("contexts to the 4096 tokens of this model's sliding window"));
}

TEST(Report, SaysHowManyReplicasServeHas) {
  const PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "bf16");
  Candidate candidate;
  candidate.layout.replicas = 256;
  EXPECT_EQ(WhyNotServed(request, candidate), "");
  candidate.layout.replicas = 257;
  EXPECT_THAT(WhyNotServed(request, candidate), HasSubstr("at most 256 replicas"));
}

TEST(Report, AdvisesFirstWhatServeCanFollow) {
  for (const char* gpu : {"a100", "h100"}) {
    const Plan plan = *MakePlan(PricedRequest("llama-3.1-70b", gpu, "bf16"));
    bool served_are_over = false;
    for (const Relaxation& relaxation : plan.relaxations) {
      const bool is_fp8 = relaxation.change == "--weights fp8";
      const bool is_served = !relaxation.change.starts_with("--weights");
      EXPECT_EQ(relaxation.not_served.empty(), is_served || (is_fp8 && gpu[0] == 'h'))
          << gpu << " " << relaxation.change;
      served_are_over |= !relaxation.not_served.empty();
      EXPECT_EQ(!relaxation.not_served.empty(), served_are_over) << relaxation.change;
    }
    EXPECT_THAT(PlanText(plan), HasSubstr(", but `serve` "));
  }
  // Of a plan for another engine it does not matter.
  const Plan of_another = *MakePlan(PricedRequest("llama-3.1-70b", "mi300x", "bf16"));
  EXPECT_FALSE(of_another.relaxations.empty());
  EXPECT_THAT(PlanText(of_another), Not(HasSubstr(", but `serve` ")));
}

// As few GPUs as hold the load may be so slow that each token costs more.
TEST(Report, CallsNothingCheaperThatCostsMorePerToken) {
  const Plan plan = *MakePlan(PricedRequest("llama-3.1-405b", "h100", "fp8"));
  ASSERT_EQ(plan.relaxations[0].change, "--kv fp8");
  EXPECT_LT(*plan.relaxations[0].usd_per_hour, *plan.answer()->usd_per_hour);
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, HasSubstr("Fewer     --kv fp8: 7 GPUs, $7.00 per hour; a token costs "
                              "more:\n          tp 1 x pp 7 instead of tp 8 x pp 1: TPOT "));
  EXPECT_THAT(text, HasSubstr(" instead of $2.20 per million\n"));
  EXPECT_THAT(text, Not(HasSubstr("Cheaper   --kv")));
  const auto changed = nlohmann::json::parse(PlanJson(plan, {}))["relaxations"][0];
  EXPECT_FALSE(changed["is_cheaper_per_token"]);
  EXPECT_EQ(changed["pp"], 7);
  EXPECT_GT(changed["usd_per_million_output_tokens"], 7);
  EXPECT_GT(changed["tpot_ms"], 200);
  EXPECT_LT(changed["output_tokens_per_s"], plan.answer()->output_tokens_per_s / 2);
}

TEST(Report, SaysWhatATokenCostsWithCheaperChanges) {
  const Plan plan = *MakePlan(PricedRequest("llama-3.1-405b", "h100", "bf16"));
  ASSERT_EQ(plan.relaxations[0].change, "--weights fp8");
  EXPECT_THAT(PlanText(plan), HasSubstr("Cheaper   --weights fp8: 8 GPUs, $8.00 per hour, $2.20 "
                                        "instead of $"));
  EXPECT_TRUE(nlohmann::json::parse(PlanJson(plan, {}))["relaxations"][0]["is_cheaper_per_token"]);
}

TEST(Report, AdvisesWholeFormats) {
  PlanRequest request = PricedRequest("llama-3.1-8b", "h100", "f32");
  request.kv = *FindKvFormat("f32");
  const Plan plan = *MakePlan(request);
  ASSERT_GE(plan.relaxations.size(), 2u);
  EXPECT_EQ(plan.relaxations[0].change, "--weights bf16 --kv bf16");
  EXPECT_EQ(plan.relaxations[1].change, "--weights fp8 --kv bf16");
  EXPECT_EQ(plan.relaxations[1].not_served, "");
}

TEST(Report, AnswersFirstAndInJsonToo) {
  PlanRequest request = PricedRequest("llama-3.1-405b", "h100", "bf16");
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
