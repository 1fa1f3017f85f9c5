// The families of dense decoders that share Llama's layers, and what sets them apart. Pure; any
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ModelFamily : uint8_t { kLlama, kMistral, kQwen2, kQwen3 };

// Source: LlamaConfig, MistralConfig, Qwen2Config and Qwen3Config of Hugging Face transformers
// (configuration_llama.py and so on), and the attention of their modeling_*.py.
struct FamilyTraits {
  ModelFamily family;
  const char* name;          // for people
  const char* model_type;    // config.json's
  const char* architecture;  // the one of config.json's architectures
  bool has_qkv_bias;         // q, k and v are products plus a vector each
  bool has_head_norms;       // every head of q and k is normalized before it is rotated
  // Whether sliding_window counts only where use_sliding_window says so, and for some layers.
  bool chooses_windows;
  // What fields that are absent stand for; 0: what the other sizes say, or, of the window, none.
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t max_position_embeddings;
  int64_t sliding_window;
};

// Layers that slide where they are chosen and layer_types does not: from this one on, unless
// max_window_layers says otherwise.
inline constexpr int64_t kFirstWindowLayer = 28;

inline constexpr std::array<FamilyTraits, 4> kModelFamilies = {{
    {ModelFamily::kLlama, "Llama", "llama", "LlamaForCausalLM", false, false, false, 0, 0, 2048, 0},
    {ModelFamily::kMistral, "Mistral", "mistral", "MistralForCausalLM", false, false, false, 8, 0,
     131072, 4096},
    {ModelFamily::kQwen2, "Qwen2", "qwen2", "Qwen2ForCausalLM", true, false, true, 32, 0, 32768,
     4096},
    {ModelFamily::kQwen3, "Qwen3", "qwen3", "Qwen3ForCausalLM", false, true, true, 32, 128, 32768,
     4096},
}};

const FamilyTraits& TraitsOf(ModelFamily family);
// By config.json's model_type; null for others.
const FamilyTraits* TraitsOfType(std::string_view model_type);

}  // namespace lockstep
