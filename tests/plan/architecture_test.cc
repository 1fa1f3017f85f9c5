#include "deploy/plan/architecture.h"

#include "deploy/plan/catalog.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

struct Published {
  const char* model;
  double billions;
  double active_billions;  // 0: dense; publishers differ in counting the embedding
};

// Parameter counts of the model cards and papers (DeepSeek-V2 arXiv 2405.04434, V3 2412.19437,
// Qwen3 2505.09388, Mixtral 2401.04088), the dense ones from their safetensors' index.
class PublishedSize : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedSize, IsReproduced) {
  const auto model = LoadModel(GetParam().model);
  ASSERT_TRUE(model.ok()) << model.status();
  const double total = static_cast<double>(model->architecture.num_parameters()) * 1e-9;
  EXPECT_NEAR(total, GetParam().billions, 0.005 * GetParam().billions);
  if (GetParam().active_billions > 0) {
    const double active = static_cast<double>(model->architecture.num_active_parameters()) * 1e-9;
    EXPECT_NEAR(active, GetParam().active_billions, 0.10 * GetParam().active_billions);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, PublishedSize,
    ::testing::Values(
        Published{"llama-2-7b", 6.738, 0}, Published{"llama-2-70b", 68.98, 0},
        Published{"llama-3.1-8b", 8.030, 0}, Published{"llama-3.1-70b", 70.554, 0},
        Published{"llama-3.1-405b", 405.853, 0}, Published{"llama-3.2-1b", 1.236, 0},
        Published{"llama-3.2-3b", 3.213, 0}, Published{"mistral-7b-v0.1", 7.242, 0},
        Published{"mixtral-8x7b", 46.70, 12.9}, Published{"mixtral-8x22b", 140.6, 39.1},
        Published{"qwen2.5-7b", 7.616, 0}, Published{"qwen2.5-0.5b", 0.494, 0},
        Published{"qwen2.5-72b", 72.706, 0}, Published{"qwen3-8b", 8.191, 0},
        Published{"qwen3-32b", 32.762, 0}, Published{"qwen3-30b-a3b", 30.53, 3.3},
        Published{"qwen3-235b-a22b", 235.09, 22.0}, Published{"deepseek-v2-lite", 15.71, 2.4},
        Published{"deepseek-v2", 235.74, 21.0}, Published{"deepseek-v3", 671.03, 37.0}));

TEST(Architecture, EveryBuiltInModelIsUnderstood) {
  for (const std::string& name : ModelNames()) EXPECT_TRUE(LoadModel(name).ok()) << name;
}

TEST(Architecture, TheRuntimeReadsLlamasAlike) {
  const auto model = LoadModel("llama-3.1-8b");
  ASSERT_TRUE(model.ok());
  ASSERT_TRUE(model->architecture.runtime_config.has_value());
  EXPECT_EQ(model->architecture.num_parameters(),
            model->architecture.runtime_config->num_parameters());
}

TEST(Architecture, OnlyLayersThatSlideHaveAWindow) {
  // Absent fields are what they are to `serve`.
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    const std::string text = std::string(R"({"hidden_size":3072,"intermediate_size":12288,
        "num_hidden_layers":40,"num_attention_heads":32,"vocab_size":100,
        "max_position_embeddings":32768,"model_type":")") +
                             type + "\"}";
    const auto absent = ParseArchitecture(text);
    ASSERT_TRUE(absent.ok()) << absent.status();
    ASSERT_TRUE(absent->runtime_config.has_value()) << absent->runtime_refusal;
    EXPECT_EQ(absent->num_kv_heads, absent->runtime_config->num_kv_heads) << type;
    EXPECT_EQ(absent->head_dim, absent->runtime_config->head_dim) << type;
    EXPECT_EQ(absent->window_of_layer[39], absent->runtime_config->sliding_window.value_or(0));
    EXPECT_EQ(absent->num_parameters(), absent->runtime_config->num_parameters()) << type;
  }
  const auto mistral = LoadModel("mistral-7b-v0.1");
  EXPECT_EQ(mistral->architecture.window_of_layer[31], 4096);
  const auto mixed = ParseArchitecture(R"({"model_type":"qwen2","hidden_size":64,
    "intermediate_size":128,"num_hidden_layers":4,"num_attention_heads":4,
    "num_key_value_heads":4,"vocab_size":100,
    "max_position_embeddings":64,"sliding_window":8,"use_sliding_window":true,
    "max_window_layers":3})");
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  EXPECT_THAT(mixed->window_of_layer, ::testing::ElementsAre(0, 0, 0, 8));
}

TEST(Architecture, RefusesByNameAndValue) {
  const auto message = [](const char* text) {
    return std::string(ParseArchitecture(text).status().message());
  };
  EXPECT_THAT(message("{}"), HasSubstr("model_type is missing"));
  EXPECT_THAT(message(R"({"model_type":"gpt2"})"), HasSubstr("\"gpt2\" is not known"));
  EXPECT_THAT(message(R"({"model_type":"llama","hidden_size":0})"),
              HasSubstr("hidden_size = 0 is not an integer in [1, "));
  EXPECT_THAT(message(R"({"model_type":"llama","hidden_size":64})"),
              HasSubstr("intermediate_size is missing"));
  EXPECT_THAT(message(R"({"model_type":"llama","hidden_size":1048576,"intermediate_size":4194304,
    "num_hidden_layers":4096,"num_attention_heads":1024,"vocab_size":10,
    "max_position_embeddings":10})"),
              HasSubstr("more than 2^50"));
  EXPECT_THAT(message("[]"), HasSubstr("not an object"));
}

}  // namespace
}  // namespace lockstep::plan
