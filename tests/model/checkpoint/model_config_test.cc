#include "model/model_config.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/model/checkpoint/config_documents.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ParsedConfig;
using testing::With;
using testing::Without;

// Llama 3.1 8B's config.json, as published.
json Llama31() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 128256})");
}

TEST(ModelConfig, ReadsLlama31) {
  const ModelConfig config = ParsedConfig(Llama31());
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.intermediate_size, 14336);
  EXPECT_EQ(config.num_layers, 32);
  EXPECT_EQ(config.num_heads, 32);
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.vocab_size, 128256);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_theta, 500000.0);
  ASSERT_TRUE(config.rope_scaling.has_value());
  const auto& scaling = std::get<Llama3RopeScaling>(*config.rope_scaling);
  EXPECT_EQ(scaling.factor, 8.0);
  EXPECT_EQ(scaling.low_freq_factor, 1.0);
  EXPECT_EQ(scaling.high_freq_factor, 4.0);
  EXPECT_EQ(scaling.original_max_position_embeddings, 8192);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.bos_token_id, 128000);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(config.num_parameters(), 8'030'261'248);
}

TEST(ModelConfig, ReadsLinearScalingInBothSpellings) {
  for (const char* name : {"type", "rope_type"}) {
    const json document = With(Llama31(), "rope_scaling", {{name, "linear"}, {"factor", 4.0}});
    const ModelConfig config = ParsedConfig(document);
    EXPECT_EQ(std::get<LinearRopeScaling>(*config.rope_scaling).factor, 4.0);
    EXPECT_EQ(config.max_position_embeddings, 131072);  // files name the stretched ones
    const auto again = ParseModelConfig(ModelConfigJson(config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(std::get<LinearRopeScaling>(*again->rope_scaling).factor, 4.0);
  }
}

TEST(ModelConfig, ReadsLlama2WithItsDefaults) {
  const ModelConfig config = ParsedConfig(json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16", "vocab_size": 32000})"));
  EXPECT_EQ(config.num_kv_heads, 32);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_EQ(config.dtype, DType::kF16);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config.num_parameters(), 6'738'415'616);
}

TEST(ModelConfig, ReadsTheSpellingOfTransformers5) {
  json config = Without(Without(Without(Llama31(), "rope_theta"), "rope_scaling"), "torch_dtype");
  config["dtype"] = "bfloat16";
  config["rope_parameters"] = Llama31()["rope_scaling"];
  config["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(ModelConfigJson(ParsedConfig(config)), ModelConfigJson(ParsedConfig(Llama31())));
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  EXPECT_FALSE(ParsedConfig(config).rope_scaling.has_value());
  EXPECT_EQ(ParsedConfig(config).rope_theta, 10000.0);
}

TEST(ModelConfig, AbsentFieldsHaveTransformersDefaults) {
  const ModelConfig config = ParsedConfig(json::parse(R"({"model_type":"llama","hidden_size":64,
    "intermediate_size":128,"num_hidden_layers":1,"num_attention_heads":4,"vocab_size":10})"));
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.bos_token_id.has_value());
  EXPECT_THAT(config.eos_token_ids, IsEmpty());
}

TEST(ModelConfig, HarmlessVariantsAreAccepted) {
  for (const json& config :
       {With(Llama31(), "head_dim", 64), With(Llama31(), "pretraining_tp", 2),
        With(Llama31(), "sliding_window", nullptr), With(Llama31(), "quantization_config", nullptr),
        With(Llama31(), "rope_scaling", {{"type", "default"}}), Without(Llama31(), "architectures"),
        Without(Llama31(), "model_type"), With(Llama31(), "rope_theta", 500000),
        With(Llama31(), "eos_token_id", nullptr), With(Llama31(), "partial_rotary_factor", 1.0)}) {
    EXPECT_TRUE(ParseModelConfig(config.dump()).ok()) << ParseModelConfig(config.dump()).status();
  }
}

TEST(ModelConfig, HeadDimMayDifferFromHiddenSizeOverHeads) {
  const ModelConfig config =
      ParsedConfig(With(With(Llama31(), "head_dim", 64), "num_attention_heads", 24));
  EXPECT_EQ(config.head_dim, 64);
}

TEST(ModelConfig, JsonRoundTrips) {
  for (const json& source :
       {Llama31(), Without(Llama31(), "rope_scaling"), With(Llama31(), "head_dim", 64),
        With(Llama31(), "rms_norm_eps", 1e-6), With(Llama31(), "torch_dtype", "float32"),
        Without(Without(Llama31(), "bos_token_id"), "eos_token_id")}) {
    const ModelConfig config = ParsedConfig(source);
    const ModelConfig again = ParsedConfig(json::parse(ModelConfigJson(config)));
    EXPECT_EQ(ModelConfigJson(again), ModelConfigJson(config));
    EXPECT_EQ(again.Fingerprint(), config.Fingerprint());
  }
}

TEST(ModelConfig, FingerprintTellsEveryFieldApart) {
  const std::string base = ParsedConfig(Llama31()).Fingerprint();
  EXPECT_EQ(base.find('\n'), std::string::npos);
  for (const json& changed :
       {With(Llama31(), "hidden_size", 2048), With(Llama31(), "intermediate_size", 14344),
        With(Llama31(), "num_hidden_layers", 31), With(Llama31(), "num_key_value_heads", 16),
        With(Llama31(), "vocab_size", 128264), With(Llama31(), "rms_norm_eps", 1e-6),
        With(Llama31(), "rope_theta", 10000.0), With(Llama31(), "tie_word_embeddings", true),
        With(Llama31(), "torch_dtype", "float32"), Without(Llama31(), "rope_scaling"),
        With(Llama31(), "max_position_embeddings", 8192),
        With(Llama31(), "eos_token_id", 128001)}) {
    EXPECT_NE(ParsedConfig(changed).Fingerprint(), base) << changed;
  }
  // A stable hash: ranks built by other compilers must agree.
  EXPECT_EQ(base, "llama-L32-h4096-i14336-a32-k8-d128-v128256-bf16-57d5447c1b4594cf");
}

struct Refusal {
  const char* name;
  json config;
  const char* message;
};

class ModelConfigRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(ModelConfigRefuses, NamingFieldAndValue) {
  const auto config = ParseModelConfig(GetParam().config.dump());
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(config.status().message());
  EXPECT_THAT(message, HasSubstr("config.json: "));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

json RopeScaling(const std::string& field, json value) {
  json config = Llama31();
  config["rope_scaling"][field] = std::move(value);
  return config;
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };

INSTANTIATE_TEST_SUITE_P(
    Variants, ModelConfigRefuses,
    ::testing::Values(
        Refusal{"ModelType", With(Llama31(), "model_type", "mixtral"),
                R"(model_type = "mixtral" is not supported; supported: "llama", "mistral", )"},
        Refusal{"Architecture",
                With(Llama31(), "architectures", {"LlamaForSequenceClassification"}),
                R"(architectures = ["LlamaForSequenceClassification"])"},
        Refusal{"NeitherTypeNorArchitecture",
                Without(Without(Llama31(), "architectures"), "model_type"),
                "model_type is missing"},
        Refusal{"Activation", With(Llama31(), "hidden_act", "gelu"), R"(hidden_act = "gelu")"},
        Refusal{"AttentionBias", With(Llama31(), "attention_bias", true), "attention_bias = true"},
        Refusal{"MlpBias", With(Llama31(), "mlp_bias", true), "mlp_bias = true"},
        Refusal{"SlidingWindow", With(Llama31(), "sliding_window", 4096), "sliding_window = 4096"},
        Refusal{"Experts", With(Llama31(), "num_local_experts", 8), "num_local_experts = 8"},
        Refusal{"PartialRotary", With(Llama31(), "partial_rotary_factor", 0.5),
                "partial_rotary_factor = 0.5"},
        Refusal{
            "Quantized",
            With(Llama31(), "quantization_config", {{"quant_method", "bitsandbytes"}, {"bits", 4}}),
            R"(quantization_config.quant_method = "bitsandbytes")"},
        Refusal{"SparedByNoList",
                With(Llama31(), "quantization_config",
                     {{"quant_method", "fbgemm_fp8"}, {"modules_to_not_convert", "lm_head"}}),
                R"(modules_to_not_convert = "lm_head" is not supported; supported: a list)"},
        Refusal{"SparedByNumber",
                With(Llama31(), "quantization_config",
                     {{"quant_method", "awq"},
                      {"bits", 4},
                      {"group_size", 128},
                      {"modules_to_not_convert", nlohmann::json::array({"lm_head", 7})}}),
                R"(modules_to_not_convert = ["lm_head",7] is not supported)"},
        Refusal{"DType", With(Llama31(), "torch_dtype", "float64"), R"(torch_dtype = "float64")"},
        Refusal{"DType5", With(Llama31(), "dtype", "float8_e4m3fn"), R"(dtype = "float8_e4m3fn")"}),
    kName);

INSTANTIATE_TEST_SUITE_P(
    Rope, ModelConfigRefuses,
    ::testing::Values(
        Refusal{"LongRope", RopeScaling("rope_type", "longrope"),
                R"(rope_scaling.rope_type = "longrope")"},
        Refusal{
            "OldSpellingDynamic",
            With(Llama31(), "rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}),
            R"(= "dynamic" is not supported; supported: "default", "linear", "llama3", "yarn")"},
        Refusal{"LinearWithoutFactor", With(Llama31(), "rope_scaling", {{"type", "linear"}}),
                "rope_scaling.factor is missing"},
        Refusal{"LinearFactorBelowOne",
                With(Llama31(), "rope_scaling", {{"type", "linear"}, {"factor", 0.5}}),
                "rope_scaling.factor = 0.5"},
        Refusal{"NoType", With(Llama31(), "rope_scaling", {{"factor", 2.0}}),
                "rope_scaling.rope_type is missing"},
        Refusal{"NotAnObject", With(Llama31(), "rope_scaling", 8.0), "rope_scaling = 8.0"},
        Refusal{"NoFactor", RopeScaling("factor", nullptr), "rope_scaling.factor is missing"},
        Refusal{"FactorBelowOne", RopeScaling("factor", 0.5), "rope_scaling.factor = 0.5"},
        Refusal{"FactorText", RopeScaling("factor", "8"), R"(rope_scaling.factor = "8")"},
        Refusal{"ZeroLowFactor", RopeScaling("low_freq_factor", 0),
                "rope_scaling.low_freq_factor = 0"},
        Refusal{"LowNotBelowHigh", RopeScaling("low_freq_factor", 4.0),
                "low_freq_factor = 4 must be less than high_freq_factor = 4"},
        Refusal{"NoOriginal", RopeScaling("original_max_position_embeddings", nullptr),
                "original_max_position_embeddings is missing"},
        Refusal{"OriginalZero", RopeScaling("original_max_position_embeddings", 0),
                "original_max_position_embeddings = 0"},
        Refusal{"PerLayerType",
                With(Without(Llama31(), "rope_scaling"), "rope_parameters",
                     {{"full_attention", {{"rope_type", "default"}}}}),
                "rope_parameters.full_attention"},
        Refusal{"TwoThetas",
                With(Without(Llama31(), "rope_scaling"), "rope_parameters",
                     {{"rope_type", "default"}, {"rope_theta", 1000.0}}),
                "rope_theta is given twice"},
        Refusal{"BothSpellings", With(Llama31(), "rope_parameters", {{"rope_type", "default"}}),
                "both given and differ"},
        Refusal{"ThetaZero", With(Llama31(), "rope_theta", 0.0), "rope_theta = 0.0"},
        Refusal{"ThetaHuge", With(Llama31(), "rope_theta", 1e300), "rope_theta = 1e+300"}),
    kName);

INSTANTIATE_TEST_SUITE_P(
    Numbers, ModelConfigRefuses,
    ::testing::Values(
        Refusal{"NoHiddenSize", Without(Llama31(), "hidden_size"), "hidden_size is missing"},
        Refusal{"ZeroLayers", With(Llama31(), "num_hidden_layers", 0),
                "num_hidden_layers = 0 is not supported; supported: an integer in [1, 4096]"},
        Refusal{"NegativeHeads", With(Llama31(), "num_attention_heads", -32),
                "num_attention_heads = -32"},
        Refusal{"FractionalSize", With(Llama31(), "hidden_size", 4096.5), "hidden_size = 4096.5"},
        Refusal{"FloatSize", With(Llama31(), "hidden_size", 4096.0), "hidden_size = 4096.0"},
        Refusal{"TextSize", With(Llama31(), "hidden_size", "4096"), R"(hidden_size = "4096")"},
        Refusal{"ArraySize", With(Llama31(), "hidden_size", {4096}), "hidden_size = [4096]"},
        Refusal{"BoolSize", With(Llama31(), "hidden_size", true), "hidden_size = true"},
        Refusal{"HugeUnsigned", With(Llama31(), "vocab_size", 18446744073709551615u),
                "vocab_size = 18446744073709551615"},
        Refusal{"HugeHidden", With(Llama31(), "hidden_size", 1 << 21), "hidden_size = 2097152"},
        Refusal{"HugeLayers", With(Llama31(), "num_hidden_layers", 4097),
                "num_hidden_layers = 4097"},
        Refusal{"HugePositions", With(Llama31(), "max_position_embeddings", 1 << 28),
                "max_position_embeddings = 268435456"},
        Refusal{"KvHeadsDoNotDivide", With(Llama31(), "num_key_value_heads", 5),
                "num_attention_heads = 32 is not a multiple of num_key_value_heads = 5"},
        Refusal{"HeadsDoNotDivide",
                With(With(Llama31(), "num_attention_heads", 24), "num_key_value_heads", 8),
                "hidden_size = 4096 is not a multiple of num_attention_heads = 24"},
        Refusal{"OddHeadDim", With(Llama31(), "head_dim", 127), "head_dim = 127"},
        Refusal{"HugeHeadDim",
                With(With(Llama31(), "num_attention_heads", 2), "num_key_value_heads", 2),
                "head_dim = 2048"},
        Refusal{"ZeroEps", With(Llama31(), "rms_norm_eps", 0.0), "rms_norm_eps = 0.0"},
        Refusal{"NegativeEps", With(Llama31(), "rms_norm_eps", -1e-5), "rms_norm_eps = -1e-05"},
        Refusal{"TiedText", With(Llama31(), "tie_word_embeddings", "yes"),
                R"(tie_word_embeddings = "yes" is not supported; supported: true or false)"},
        Refusal{"BosOutside", With(Llama31(), "bos_token_id", 128256), "bos_token_id = 128256"},
        Refusal{"EosNegative", With(Llama31(), "eos_token_id", -1), "eos_token_id = -1"},
        Refusal{"EosInListOutside", With(Llama31(), "eos_token_id", {1, 128256}),
                "eos_token_id = 128256"},
        Refusal{"EosText", With(Llama31(), "eos_token_id", "</s>"), R"(eos_token_id = "</s>")"},
        Refusal{"EosTooMany", With(Llama31(), "eos_token_id", json(std::vector<int>(65, 1))),
                "at most 64 ids"}),
    kName);

TEST(ModelConfig, TextThatIsNoObjectIsRefused) {
  for (const char* text : {"", "[]", "null", "{", "{\"a\":1,\"a\":2}", "{\"hidden_size\":NaN}"}) {
    const auto config = ParseModelConfig(text);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.json: ")) << text;
  }
}

TEST(GenerationConfig, MergesEosIdsAndReadsDefaults) {
  ModelConfig config = ParsedConfig(With(Llama31(), "eos_token_id", 128001));
  const auto defaults = ParseGenerationConfig(
      R"({"bos_token_id":128000,"do_sample":true,"eos_token_id":[128001,128008,128009],
          "temperature":0.6,"top_p":0.9,"top_k":50,"min_p":0.05,"repetition_penalty":1.1,"transformers_version":"4"})",
      config);
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_THAT(config.eos_token_ids, ElementsAre(128001, 128008, 128009));
  EXPECT_EQ(defaults->do_sample, true);
  EXPECT_EQ(defaults->temperature, 0.6f);
  EXPECT_EQ(defaults->top_p, 0.9f);
  EXPECT_EQ(defaults->top_k, 50);
  EXPECT_EQ(defaults->min_p, 0.05f);
  EXPECT_EQ(defaults->repetition_penalty, 1.1f);
}

TEST(GenerationConfig, AbsentFieldsStayUnset) {
  ModelConfig config = ParsedConfig(Llama31());
  const auto defaults = ParseGenerationConfig("{}", config);
  ASSERT_TRUE(defaults.ok());
  EXPECT_FALSE(defaults->do_sample || defaults->temperature || defaults->top_p || defaults->top_k ||
               defaults->min_p || defaults->repetition_penalty);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(128001, 128008, 128009));
}

TEST(GenerationConfig, TopKIsOffAsOthersWriteIt) {
  for (const char* text : {R"({"top_k":0})", R"({"top_k":-1})"}) {
    ModelConfig config = ParsedConfig(Llama31());
    const auto defaults = ParseGenerationConfig(text, config);
    ASSERT_TRUE(defaults.ok()) << defaults.status();
    EXPECT_EQ(defaults->top_k, 0);
  }
}

TEST(GenerationConfig, RefusesWhatIsOutOfRange) {
  for (const char* text : {R"({"temperature":-1})", R"({"top_p":1.5})", R"({"top_k":-2})",
                           R"({"min_p":1.5})", R"({"min_p":-0.1})", R"({"repetition_penalty":0})",
                           R"({"eos_token_id":999999})", R"({"do_sample":1})", "[]", "x"}) {
    ModelConfig config = ParsedConfig(Llama31());
    const auto defaults = ParseGenerationConfig(text, config);
    EXPECT_EQ(defaults.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(defaults.status().message()), HasSubstr("generation_config.json: "));
  }
}

}  // namespace
}  // namespace lockstep
