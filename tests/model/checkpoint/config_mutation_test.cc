// Damaged config.json texts end in a Status or in a config whose arithmetic is safe.
#include "gtest/gtest.h"
#include "model/checkpoint/model_shapes.h"
#include "model/model_config.h"
#include "tests/model/checkpoint/model_directory.h"
#include "tests/model/checkpoint/mutations.h"

namespace lockstep {
namespace {

std::vector<std::string> Texts() {
  return {ModelConfigJson(*BuiltInShape("8b")),
          R"({"model_type":"mistral","hidden_size":64,"intermediate_size":128,
              "num_hidden_layers":2,"num_attention_heads":8,"vocab_size":10,"sliding_window":1024})",
          R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":64,
              "intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":32,
              "vocab_size":10,"sliding_window":64,"use_sliding_window":true,"max_window_layers":1,
              "rope_theta":10000.0,"rope_scaling":{"rope_type":"yarn","factor":4.0,"beta_fast":32,
              "beta_slow":1,"mscale":0.7,"mscale_all_dim":1.0,
              "original_max_position_embeddings":32768}})"};
}

TEST(ConfigMutation, DamagedConfigsNeverCrash) {
  const std::vector<std::string> texts = Texts();
  std::mt19937_64 random(3);
  int num_refused = 0;
  constexpr int kRounds = 10'000;
  for (int round = 0; round < kRounds; ++round) {
    const auto config = ParseModelConfig(testing::Mutate(texts[round % texts.size()], random));
    if (!config.ok()) {
      ++num_refused;
      continue;
    }
    EXPECT_GT(config->num_parameters(), 0);
    EXPECT_EQ(config->num_heads % config->num_kv_heads, 0);
    EXPECT_EQ(config->head_dim % 2, 0);
    const auto again = ParseModelConfig(ModelConfigJson(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->Fingerprint(), config->Fingerprint());
  }
  EXPECT_GT(num_refused, kRounds / 4);
}

TEST(ConfigMutation, DamagedGenerationConfigsNeverCrash) {
  const std::string text =
      R"({"do_sample":true,"temperature":0.6,"top_p":0.9,"top_k":5,"eos_token_id":[1,2,3]})";
  std::mt19937_64 random(4);
  for (int round = 0; round < 10'000; ++round) {
    ModelConfig config = *BuiltInShape("8b");
    const auto defaults = ParseGenerationConfig(testing::Mutate(text, random), config);
    for (const int32_t id : config.eos_token_ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, config.vocab_size);
    }
    if (!defaults.ok()) continue;
    EXPECT_LE(defaults->top_p.value_or(1.0f), 1.0f);
  }
}

TEST(ConfigMutation, TheLargestSizesDoNotOverflow) {
  const auto config = ParseModelConfig(R"({"model_type":"llama","hidden_size":1048576,
      "intermediate_size":4194304,"num_hidden_layers":4096,"num_attention_heads":16384,"head_dim":1024,
      "vocab_size":16777216})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_GT(config->num_parameters(), int64_t{1} << 57);
  EXPECT_LT(config->num_parameters(), int64_t{1} << 59);
}

}  // namespace
}  // namespace lockstep
