// Checkpoints in FP8 on GPUs: matrices are kept as they are stored, where the GPU multiplies fp8.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_backend.h"
#include "model/llama/llama_stage.h"
#include "nlohmann/json.hpp"
#include "parallel/communicator.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/fp8_devices.h"
#include "tests/model/llama/float8_model.h"
#include "tests/model/llama/stage_driver.h"
#include "tests/model/llama/temporary_model.h"
#ifdef LOCKSTEP_CUDA_EMULATION
#include "tests/support/cuda_emulation/emulation.h"
#endif

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// A model of one token alone, whose attention gives its values back, in plain loops. What a matrix
// that has a bound multiplies is quantized as FBGEMM's quantize_fp8_per_row does it.
class PlainModel {
 public:
  PlainModel(const ModelConfig& config, std::map<std::string, std::vector<float>> tensors)
      : config_(config), tensors_(std::move(tensors)) {}

  // Of all matrices of a layer whose names have `part` in them.
  void Quantize(const std::string& part, float bound) { bounds_[part] = bound; }
  // The projections of which some input was beyond its bound.
  const std::set<std::string>& bounded() const { return bounded_; }

  std::vector<float> Logits(int token) {
    const auto& embedding = tensors_.at("model.embed_tokens.weight");
    const auto width = static_cast<size_t>(config_.hidden_size);
    const auto row = embedding.begin() + token * config_.hidden_size;
    std::vector<double> x(row, row + config_.hidden_size);
    const auto add = [&](const std::vector<double>& delta) {
      for (size_t i = 0; i < width; ++i) x[i] += delta[i];
    };
    for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
      const std::string at = "model.layers." + std::to_string(layer) + ".";
      const auto v = Multiply(at + "self_attn.v_proj", Normalized(at + "input_layernorm", x));
      add(Multiply(at + "self_attn.o_proj", OfQueryHeads(v)));
      const auto in = Normalized(at + "post_attention_layernorm", x);
      auto gated = Multiply(at + "mlp.gate_proj", in);
      const auto up = Multiply(at + "mlp.up_proj", in);
      for (size_t i = 0; i < up.size(); ++i) gated[i] *= up[i] / (1.0 + std::exp(-gated[i]));
      add(Multiply(at + "mlp.down_proj", gated));
    }
    const auto logits = Multiply("lm_head", Normalized("model.norm", x));
    return {logits.begin(), logits.end()};
  }

 private:
  std::vector<double> Normalized(const std::string& name, const std::vector<double>& x) const {
    const std::vector<float>& weight = tensors_.at(name + ".weight");
    double squares = 0;
    for (const double number : x) squares += number * number;
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(x.size()) + config_.rms_norm_eps);
    std::vector<double> out;
    for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * weight[i]);
    return out;
  }
  std::vector<double> OfQueryHeads(const std::vector<double>& v) const {
    std::vector<double> out;
    for (int64_t head = 0; head < config_.num_heads; ++head) {
      const auto from =
          v.begin() + head / (config_.num_heads / config_.num_kv_heads) * config_.head_dim;
      out.insert(out.end(), from, from + config_.head_dim);
    }
    return out;
  }
  std::vector<double> Multiply(const std::string& name, std::vector<double> x) {
    for (const auto& [part, bound] : bounds_) {
      if (name.find(part) != std::string::npos) RoundInput(name, bound, x);
    }
    const std::vector<float>& rows = tensors_.at(name + ".weight");
    std::vector<double> y(rows.size() / x.size(), 0.0);
    for (size_t i = 0; i < rows.size(); ++i) y[i / x.size()] += rows[i] * x[i % x.size()];
    return y;
  }
  void RoundInput(const std::string& name, float bound, std::vector<double>& x) {
    double largest = 0;
    for (const double number : x) largest = std::max(largest, std::abs(number));
    if (largest > bound) bounded_.insert(name.substr(name.rfind('.') + 1));
    const double scale = std::min(largest, double{bound}) / 448.0;
    for (double& number : x) number = scale * E4m3(ToE4m3(static_cast<float>(number / scale)));
  }

  const ModelConfig config_;
  const std::map<std::string, std::vector<float>> tensors_;
  std::map<std::string, float> bounds_;
  std::set<std::string> bounded_;
};

// The same numbers twice: in FP8, its attention spared or not, and as they are.
class Float8CheckpointTest : public ::testing::Test {
 protected:
  void Write(bool spares_attention, const ModelConfig& config = SmallConfig(4)) {
    std::vector<std::string> spared;
    if (spares_attention) {
      for (const std::string& name : MatrixNames(config)) {
        if (name.find("self_attn") != std::string::npos) spared.push_back(name);
      }
    }
    model_ = std::make_unique<Float8Model>(config, DType::kF32, spared, FbgemmFp8(spared, bound_),
                                           has_outliers_);
    float8_ = &model_->checkpoint();
    plain_ = &model_->plain();
  }

  static std::unique_ptr<Backend> MakeBackend() {
    auto backend = cuda::CudaBackend::Create({.compute = DType::kF32, .deterministic = true});
    EXPECT_TRUE(backend.ok()) << backend.status();
    return *std::move(backend);
  }
  static StageOptions Stage(Quantization quantize) {
    StageOptions stage;
    stage.quantize = quantize;
    stage.limits = {.max_batched_tokens = 64, .max_num_seqs = 8, .max_model_len = 100};
    return stage;
  }
  static std::vector<Outcome> Run(const Checkpoint& checkpoint, Quantization quantize) {
    DriveOptions options;
    options.make_backend = MakeBackend;
    options.stage = Stage(quantize);
    auto outcomes = Drive(checkpoint, options, {{{1, 5, 9, 300, 7}, 4}, {{2}, 6}});
    EXPECT_TRUE(outcomes.ok()) << outcomes.status();
    return outcomes.ok() ? *std::move(outcomes) : std::vector<Outcome>{};
  }
  // The relative distance of single tokens' logits from what a plain model says, whose matrices in
  // FP8 have that bound.
  double DistanceFrom(PlainModel plain, Quantization quantize) const {
    DriveOptions options;
    options.make_backend = MakeBackend;
    options.stage = Stage(quantize);
    std::vector<Request> requests;
    std::vector<Outcome> want;
    for (const int token : {1, 5, 300, 514}) {
      requests.push_back({{token}, 1});
      want.push_back({{}, {plain.Logits(token)}});
    }
    auto got = Drive(*float8_, options, requests);
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) return NAN;
    for (Outcome& outcome : *got) outcome.greedy.clear();  // these logits chose it
    return Distance(*got, want);
  }
  static absl::StatusOr<int64_t> HeldBytes(const Checkpoint& checkpoint, Quantization quantize) {
    const std::unique_ptr<Backend> backend = MakeBackend();
    RankGroups groups;
    groups.tp = MakeSelfCommunicator();
    groups.pp = MakeSelfCommunicator();
    const auto stage = LlamaStage::Load(checkpoint, *ProcessGrid::Create(1, 1), 0, *backend, groups,
                                        Stage(quantize), {});
    if (!stage.ok()) return stage.status();
    return (*stage)->load_stats().weight_bytes;
  }

  std::optional<float> bound_ = 1200.0f;
  bool has_outliers_ = false;
  std::unique_ptr<Float8Model> model_;
  const Checkpoint* float8_ = nullptr;
  const Checkpoint* plain_ = nullptr;
};

TEST_F(Float8CheckpointTest, MatricesAreTakenAsTheyAre) {
  SKIP_WITHOUT_FP8();
  Write(/*spares_attention=*/false);
  const std::vector<Outcome> want = Run(*plain_, Quantization::kFp8);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kNone), want));
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kFp8), want));
  EXPECT_FALSE(SameBits(Run(*plain_, Quantization::kNone), want));
}

TEST_F(Float8CheckpointTest, OthersStayAsTheyAreUnlessFp8IsAskedFor) {
  SKIP_WITHOUT_FP8();
  Write(/*spares_attention=*/true);
  const std::vector<Outcome> all_fp8 = Run(*plain_, Quantization::kFp8);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kFp8), all_fp8));
  EXPECT_FALSE(SameBits(Run(*float8_, Quantization::kNone), all_fp8));
  EXPECT_LT(*HeldBytes(*float8_, Quantization::kFp8), *HeldBytes(*float8_, Quantization::kNone));
  EXPECT_LT(*HeldBytes(*float8_, Quantization::kNone), *HeldBytes(*plain_, Quantization::kNone));
}

#ifdef LOCKSTEP_CUDA_EMULATION
TEST_F(Float8CheckpointTest, GpusWithoutFp8TakeNumbers) {
  cuda_emulation::SetDevice({.compute_major = 8, .compute_minor = 0});
  Write(/*spares_attention=*/false);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kNone), Run(*plain_, Quantization::kNone)));
  EXPECT_EQ(*HeldBytes(*float8_, Quantization::kNone), *HeldBytes(*plain_, Quantization::kNone));
  cuda_emulation::SetDevice({});
}
#endif

// What real GPUs leave out of sums in e4m3, and what is rounded differently for its sake.
constexpr double kPlainTolerance = 0.05;

TEST_F(Float8CheckpointTest, ActivationsAreBounded) {
  SKIP_WITHOUT_FP8();
  has_outliers_ = true;
  bound_ = 4.0f;
  Write(/*spares_attention=*/false);
  PlainModel bounded(SmallConfig(4), model_->numbers()),
      unbounded(SmallConfig(4), model_->numbers());
  bounded.Quantize("_proj", *bound_);
  unbounded.Quantize("_proj", kNoActivationBound);
  EXPECT_LT(DistanceFrom(bounded, Quantization::kNone), kPlainTolerance);
  EXPECT_GT(DistanceFrom(unbounded, Quantization::kNone), 10 * kPlainTolerance);
  bounded.Logits(1);
  EXPECT_THAT(bounded.bounded(),
              ::testing::ElementsAre("down_proj", "gate_proj", "o_proj", "up_proj", "v_proj"));
  bound_.reset();
  Write(/*spares_attention=*/false);
  EXPECT_LT(DistanceFrom(unbounded, Quantization::kNone), kPlainTolerance);
}

// Those that the checkpoint has as numbers are no concern of its FP8's bound.
TEST_F(Float8CheckpointTest, ActivationsOfOtherMatricesAreNot) {
  SKIP_WITHOUT_FP8();
  has_outliers_ = true;
  bound_ = 4.0f;
  Write(/*spares_attention=*/true);
  PlainModel plain(SmallConfig(4), model_->numbers());
  plain.Quantize("mlp.", *bound_);
  EXPECT_LT(DistanceFrom(plain, Quantization::kNone), kPlainTolerance);
  plain.Quantize("self_attn.", kNoActivationBound);
  EXPECT_LT(DistanceFrom(plain, Quantization::kFp8), kPlainTolerance);
  plain.Quantize("self_attn.", *bound_);
  EXPECT_GT(DistanceFrom(plain, Quantization::kFp8), 10 * kPlainTolerance);
}

TEST_F(Float8CheckpointTest, ABoundBeyondAllActivationsIsNone) {
  SKIP_WITHOUT_FP8();
  bound_ = 3e38f;
  Write(/*spares_attention=*/false);
  const std::vector<Outcome> want = Run(*float8_, Quantization::kNone);
  bound_.reset();
  Write(/*spares_attention=*/false);
  EXPECT_TRUE(SameBits(Run(*float8_, Quantization::kNone), want));
}

// 168 columns are no multiple of 16.
TEST_F(Float8CheckpointTest, MatricesOfOtherWidthsBecomeNumbers) {
  SKIP_WITHOUT_FP8();
  ModelConfig config = SmallConfig(4);
  config.intermediate_size = 168;
  Write(/*spares_attention=*/true, config);
  const auto held = HeldBytes(*float8_, Quantization::kNone);
  ASSERT_TRUE(held.ok()) << held.status();
  const int64_t gate_up = 2 * config.intermediate_size;
  const int64_t saved = config.num_layers * (3 * gate_up * config.hidden_size - 4 * gate_up);
  EXPECT_EQ(*held, *HeldBytes(*plain_, Quantization::kNone) - saved);
}

TEST_F(Float8CheckpointTest, WhatIsNotFiniteIsNamed) {
  SKIP_WITHOUT_FP8();
  Write(/*spares_attention=*/true);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const TensorInfo* up = *float8_->Find(name);
  const auto path = float8_->directory() / "model.safetensors";
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof(header));
    const int64_t row = 5;
    file.seekp(static_cast<std::streamoff>(up->file_offset + row * 64 + 3));
    file.put('\xff');
  }
  const auto opened = Checkpoint::Open(float8_->directory());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto held = HeldBytes(**opened, Quantization::kNone);
  EXPECT_EQ(held.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(held.status().message()), HasSubstr(name + "\", row 5"));
}

}  // namespace
}  // namespace lockstep::testing
