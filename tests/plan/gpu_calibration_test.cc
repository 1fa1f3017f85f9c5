#include "deploy/plan/gpu_calibration.h"

#include <cmath>

#include "deploy/plan/planner.h"
#include "deploy/plan/report.h"
#include "deploy/plan/roofline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/llama/activations.h"
#include "nlohmann/json.hpp"
#include "parallel/process_grid.h"
#include "runtime/engine/spare_memory.h"
#include "tests/plan/hand_made_profile.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

HostProfile ProfileNamed(const std::string& name, double gib) {
  HostProfile profile = HandMadeGpuProfile();
  profile.device.name = name;
  profile.device.memory_bytes = std::llround(gib * 0x1p30);
  return profile;
}

TEST(ProfileOfGpu, IsFoundByTheDriversNameAndTheMemory) {
  const Gpu h100 = *FindGpu("h100");
  EXPECT_TRUE(IsProfileOf(ProfileNamed("NVIDIA H100 80GB HBM3", 79.2), h100));
  EXPECT_TRUE(IsProfileOf(ProfileNamed("h100 80GB HBM3", 79.6), h100));
  EXPECT_FALSE(IsProfileOf(ProfileNamed("NVIDIA H100 80GB HBM3", 40.0), h100)) << "a part of one";
  EXPECT_FALSE(IsProfileOf(ProfileNamed("NVIDIA H100 PCIe", 79.2), h100));
  EXPECT_FALSE(IsProfileOf(HandMadeProfile(), h100));
}

TEST(ProfileOfGpu, EveryDriversNameIsOfOneGpu) {
  int num_named = 0;
  for (const std::string& name : GpuNames()) {
    const Gpu gpu = *FindGpu(name);
    if (gpu.driver_name.empty()) continue;
    ++num_named;
    EXPECT_EQ(CatalogNameOf(ProfileNamed(gpu.driver_name, gpu.memory_gib)), name);
  }
  EXPECT_GE(num_named, 12);
  EXPECT_EQ(CatalogNameOf(ProfileNamed("Emulated GPU", 80)), "");
}

TEST(ProfileOfGpu, OfAnotherNamesBoth) {
  const absl::Status other = CheckProfileOf(HandMadeGpuProfile(), *FindGpu("a100"));
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), AllOf(HasSubstr("2 x NVIDIA H100 80GB HBM3"),
                                                  HasSubstr("a100-sxm-80g"), Not(HasSubstr("\n"))));
  EXPECT_THAT(std::string(CheckProfileOf(HandMadeProfile(), *FindGpu("a100")).message()),
              HasSubstr("was measured on cpu avx2"));
}

class CalibratedPlan : public ::testing::Test {
 protected:
  void Calibrate(const HostProfile& profile) {
    const CalibratedGpu calibrated = Calibrated(profile, *FindGpu("h100"), *FindEngine("vllm"));
    request_.gpu = calibrated.gpu;
    request_.engine = calibrated.engine;
  }

  PlanRequest request_ = RequestFor();

  StepCost Cost(int tp, const StepLoad& load) const {
    const Deployment deployment{request_.model.architecture,
                                request_.weights,
                                request_.kv,
                                request_.policy,
                                request_.gpu,
                                request_.engine,
                                {.tp = tp},
                                8};
    return Roofline(deployment).CostOf(0, load);
  }
};

TEST_F(CalibratedPlan, AStepCostsWhatWasMeasured) {
  Calibrate(HandMadeGpuProfile());
  const StageWork work =
      WorkOfStages(request_.model.architecture, request_.weights, {.tp = 1}).front();
  const StepCost decode = Cost(1, {.decodes = 1, .decode_context = 1000});
  EXPECT_NEAR(decode.linear, work.linear_bytes / 3000e9, 0.001 * decode.linear);
  EXPECT_NEAR(decode.kv_read, 1000 * 131072 / 2500e9, 1e-9);
  EXPECT_NEAR(decode.overhead, (32 * 10 + 300 + 3) * 1e-6, 1e-12);
  const StepCost prompt = Cost(1, {.prefill_tokens = 8192});
  const double flops = 8192 * work.linear_flops - 8191 * work.logits_only.flops;
  EXPECT_NEAR(prompt.linear, flops / 600e12, 0.001 * prompt.linear);
  EXPECT_NEAR(prompt.prefill_attention, 8192.0 * 4096 * work.attention_flops / 400e12, 1e-9);
}

TEST_F(CalibratedPlan, Fp8ProductsHaveARateOfTheirOwn) {
  Calibrate(HandMadeGpuProfile());
  request_.weights = *FindWeightFormat("fp8");
  const StageWork work =
      WorkOfStages(request_.model.architecture, request_.weights, {.tp = 1}).front();
  const StepCost prompt = Cost(1, {.prefill_tokens = 8192});
  const double flops = 8192 * work.linear_flops - 8191 * work.logits_only.flops;
  EXPECT_NEAR(prompt.linear, flops / 1200e12, 0.001 * prompt.linear);
}

TEST_F(CalibratedPlan, AllReducesAreThoseMeasuredAndElseThePublicOnes) {
  const StepCost public_of_four = Cost(4, {.decodes = 64});
  Calibrate(HandMadeGpuProfile());
  // 64 tokens of 4,096 numbers of 4 bytes are a MiB.
  EXPECT_NEAR(Cost(2, {.decodes = 64}).communication, 64 * 16e-6, 1e-9);
  // Others send 2 bytes of a number.
  EXPECT_NEAR(Cost(4, {.decodes = 32}).communication, public_of_four.communication, 1e-9);
  EXPECT_THAT(InterconnectOf(request_.gpu, 8, request_.engine.links).source,
              AllOf(HasSubstr("calibrated 2026-01-02 on elsewhere (tp 2)"),
                    HasSubstr("else public measurements")));
}

TEST_F(CalibratedPlan, BetweenNodesTheCatalogStillCounts) {
  Calibrate(HandMadeGpuProfile());
  const Interconnect net = InterconnectOf(request_.gpu, 8, request_.engine.links);
  const Interconnect catalog = InterconnectOf(*FindGpu("h100"), 8);
  EXPECT_EQ(TransferSeconds(net, true, 1e6), TransferSeconds(catalog, true, 1e6));
  EXPECT_NEAR(TransferSeconds(net, false, 1e6), 20e-6 + 1e6 / 200e9, 1e-12);
  EXPECT_EQ(AllReduceSeconds(net, 16, 1e6), AllReduceSeconds(catalog, 16, 1e6));
}

// Numbers to check by hand: 256 MiB over two nodes of eight pass each card of 50 GB/s once, an
// eighth of them each; inside a node 7/8 of them pass NVLink's 450 GB/s twice.
TEST(BetweenNodes, AnAllReducePassesEachCardWithItsShareAlone) {
  const Interconnect net = InterconnectOf(*FindGpu("h100"), 8);
  const double bytes = 0x1p28;
  const double inside = AllReduceSeconds(net, 8, bytes);
  EXPECT_NEAR(AllReduceSeconds(net, 16, bytes) - inside, bytes / 8 / 50e9 + 25e-6, 1e-9);
  EXPECT_NEAR(AllReduceSeconds(net, 32, bytes) - inside, 1.5 * bytes / 8 / 50e9 + 50e-6, 1e-9);
  EXPECT_GT(inside, 2.0 * 7 / 8 * bytes / 450e9);
  EXPECT_LT(inside, 1.6 * 2.0 * 7 / 8 * bytes / 450e9);
  // A token of the 405B: 16,384 numbers of two bytes.
  EXPECT_NEAR(AllReduceSeconds(net, 16, 32768), 29e-6, 6e-6);
}

TEST_F(CalibratedPlan, WhatWasNotMeasuredIsAnotherEngines) {
  HostProfile profile = HandMadeGpuProfile();
  profile.speeds = {profile.speeds[1]};
  profile.speeds[0].formats.pop_back();  // no fp8
  Calibrate(profile);
  const EngineProfile vllm = *FindEngine("vllm");
  EXPECT_EQ(request_.engine.flops_8, vllm.flops_8);
  EXPECT_EQ(request_.engine.flops_4, vllm.flops_4);
  EXPECT_EQ(request_.engine.layer_us, 22 - 2 * 6) << "all-reduces are counted by their size";
  EXPECT_EQ(request_.gpu.sources.at("fp8_tflops"), FindGpu("h100")->sources.at("fp8_tflops"));
  EXPECT_THAT(request_.engine.source, HasSubstr("fp8 and 4-bit products as vllm: public"));
  EXPECT_EQ(request_.engine.links.message_gb_s, 0);
}

TEST_F(CalibratedPlan, SourcesSayWhichIsWhich) {
  Calibrate(HandMadeGpuProfile());
  const Plan plan = *MakePlan(request_);
  ASSERT_NE(plan.answer(), nullptr);
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, HasSubstr("bandwidth_gb_s   calibrated 2026-01-02 on elsewhere: weights 3000 "
                              "GB/s, KV cache 2500 (datasheet: 3350)"));
  EXPECT_THAT(text, HasSubstr("fp8_tflops       calibrated 2026-01-02 on elsewhere"));
  EXPECT_THAT(text,
              HasSubstr("engine           lockstep: calibrated 2026-01-02 on elsewhere (2 x"));
  EXPECT_THAT(text, HasSubstr("nic_gb_s         usual node of this GPU"));
  EXPECT_THAT(text, HasSubstr("speeds are those of `serve`"));
  const auto json = nlohmann::json::parse(PlanJson(plan, {}));
  EXPECT_EQ(json["request"]["engine"], "lockstep");
  EXPECT_THAT(json["sources"]["all_reduce"].get<std::string>(), HasSubstr("calibrated"));
}

// What ranks allocate for such steps, and little beside it: others' model had less for most shapes.
TEST_F(CalibratedPlan, MemoryIsThatOfServe) {
  Calibrate(HandMadeGpuProfile());
  request_.engine.max_batched_tokens = 8192;
  request_.gpu = *FindGpu("h200");
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}) {
    request_.model = *LoadModel(name);
    const Plan plan = *MakePlan(request_);
    for (const Candidate& candidate : plan.candidates) {
      const Layout& layout = candidate.layout;
      SCOPED_TRACE(::testing::Message() << name << " tp " << layout.tp << " pp " << layout.pp);
      for (const StageMemory& stage : candidate.memory.stages) {
        const StageShape shape =
            *MakeStageShape(*request_.model.architecture.runtime_config,
                            *ProcessGrid::Create(layout.tp, layout.pp), stage.first_rank);
        const int64_t activations = Activations::BytesFor({.shape = shape,
                                                           .tp = layout.tp,
                                                           .max_batched_tokens = 8192,
                                                           .max_logits_rows = 256,
                                                           .input = DType::kBF16});
        EXPECT_GE(stage.activations, activations);
        EXPECT_LE(stage.activations, activations + (int64_t{256} << 20));
        EXPECT_EQ(stage.fixed() + stage.kv_budget, stage.capacity);
      }
    }
  }
}

TEST_F(CalibratedPlan, MemoryIsSparedAsServeDoes) {
  Calibrate(HandMadeGpuProfile());
  const Plan plan = *MakePlan(request_);
  for (const Candidate& candidate : plan.candidates) {
    for (const StageMemory& stage : candidate.memory.stages) {
      const auto unused = static_cast<int64_t>(static_cast<double>(stage.capacity) *
                                               (1.0 - request_.memory.utilization));
      const int64_t spared = stage.reserve - unused;
      EXPECT_EQ(spared, SpareBytes(stage.kv_budget + spared));
    }
  }
}

TEST_F(CalibratedPlan, MemoryOfWhatServeDoesNotLoadIsAsForOthers) {
  request_.model = *LoadModel("deepseek-v2-lite");
  const Plan before = *MakePlan(request_);
  Calibrate(HandMadeGpuProfile());
  request_.engine.max_batched_tokens = FindEngine("vllm")->max_batched_tokens;
  const Plan after = *MakePlan(request_);
  ASSERT_EQ(before.candidates.size(), after.candidates.size());
  for (size_t i = 0; i < before.candidates.size(); ++i) {
    EXPECT_EQ(before.candidates[i].memory.num_kv_blocks, after.candidates[i].memory.num_kv_blocks);
  }
}

TEST_F(CalibratedPlan, LargerLoadNeverNeedsFewerGpus) {
  Calibrate(HandMadeGpuProfile());
  int before = 0;
  for (request_.concurrency = 1; request_.concurrency < 3000; request_.concurrency *= 3) {
    const auto plan = MakePlan(request_);
    ASSERT_TRUE(plan.ok() && plan->answer() != nullptr) << request_.concurrency;
    EXPECT_GE(plan->answer()->reserved_gpus, before);
    before = plan->answer()->reserved_gpus;
  }
}

}  // namespace
}  // namespace lockstep::plan
