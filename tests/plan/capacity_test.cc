// What the planner predicts for CPU ranks is what `serve` allocates: PlanHostMemory against
// PlanCapacity.
#include "launcher/serving/capacity.h"

#include "deploy/plan/catalog.h"
#include "deploy/plan/memory_plan.h"
#include "deploy/plan/report.h"
#include "gtest/gtest.h"
#include "model/checkpoint/model_shapes.h"
#include "tests/plan/requests.h"

namespace lockstep::plan {
namespace {

struct Case {
  const char* shape;
  int64_t available_bytes;
};

class HostMemoryMatchesServe : public ::testing::TestWithParam<Case> {
 protected:
  void Compare(const ModelConfig& config, const Architecture& model, const std::string& dtype,
               int tp, int pp) {
    ModelFlags flags;
    const bool quantized = dtype.starts_with("int");
    if (quantized) flags.quantize = dtype;
    RankFlags rank;
    if (!quantized) rank.dtype = dtype;
    flags.tp = tp;
    flags.pp = pp;
    const bool on_gpus = dtype == "f16";
    const RanksDevices devices{
        .kind = on_gpus ? RanksDevices::Kind::kGpus : RanksDevices::Kind::kCpus,
        .multiply_fp8 = on_gpus,
        .memory_bytes = GetParam().available_bytes};
    const auto served = PlanCapacity({config, flags, rank, devices, {}});
    const auto weights = FindWeightFormat(dtype);
    const auto planned = PlanHostMemory(
        {model, *weights, {}, GetParam().available_bytes, config.max_position_embeddings},
        {.tp = tp, .pp = pp});
    SCOPED_TRACE(::testing::Message() << dtype << " tp " << tp << " pp " << pp);
    ASSERT_EQ(served.ok(), planned.ok()) << served.status() << " / " << planned.status();
    if (!served.ok()) return;
    EXPECT_EQ(planned->num_kv_blocks, served->num_kv_blocks);
    EXPECT_EQ(planned->weight_bytes, served->weight_bytes);
    EXPECT_EQ(planned->kv_bytes_per_token, served->kv_bytes_per_token);
    ++compared_;
  }
  int compared_ = 0;
};

TEST_P(HostMemoryMatchesServe, InEveryLayout) {
  const auto config = BuiltInShape(GetParam().shape);
  ASSERT_TRUE(config.ok());
  const auto model = ParseArchitecture(ModelConfigJson(*config));
  ASSERT_TRUE(model.ok()) << model.status();
  for (const char* dtype : {"bf16", "f32", "f16", "int8", "int4"}) {
    for (const int tp : {1, 2, 3, 4, 8, 16, 32}) {
      for (const int pp : {1, 2, 3, 4, 7, 16}) Compare(*config, *model, dtype, tp, pp);
    }
  }
  EXPECT_GT(compared_, 10);
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostMemoryMatchesServe,
                         ::testing::Values(Case{"tiny", int64_t{1} << 30},
                                           Case{"llama-3.2-1b", int64_t{23} << 30},
                                           Case{"llama-3.2-3b", int64_t{33} << 30},
                                           Case{"llama-3.1-8b", int64_t{100} << 30},
                                           Case{"llama-3.1-70b", int64_t{600} << 30},
                                           Case{"llama-3.1-405b", int64_t{1} << 41}));

// The parts are counted apart from the runtime's total, and must add up to it.
TEST(WeightParts, AddUpToWhatTheRuntimeHolds) {
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b", "llama-3.1-405b"}) {
    const Architecture model = LoadModel(name)->architecture;
    const auto bf16 = FindWeightFormat("bf16");
    for (const int tp : {1, 4, 8}) {
      const auto shards = ShardsOfLayout(*model.runtime_config, tp, 2, DType::kBF16);
      Architecture apart = model;
      apart.runtime_config.reset();
      const auto ranks = WeightsOfRanks(apart, *bf16, {.tp = tp, .pp = 2});
      ASSERT_EQ(ranks.size(), shards->size());
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        EXPECT_EQ(ranks[rank].total(), (*shards)[rank].weight_bytes) << name << " rank " << rank;
      }
    }
  }
}

// What a launch command leaves out is what `serve` does unasked.
TEST(LaunchCommands, LeaveOutWhatServeDoesUnasked) {
  const ModelFlags serve;
  PlanRequest request = RequestFor();
  request.memory.block_size = serve.block_size;
  request.memory.utilization = RankFlags().gpu_memory_utilization;
  request.engine.max_batched_tokens = serve.max_batched_tokens;
  const std::string command = LaunchCommand(*MakePlan(request));
  EXPECT_TRUE(command.starts_with("lockstep serve "));
  for (const char* flag : {"--block-size", "--gpu-memory-utilization", "--max-batched-tokens"}) {
    EXPECT_EQ(command.find(flag), std::string::npos) << flag;
  }
}

}  // namespace
}  // namespace lockstep::plan
