#!/usr/bin/env python3
"""Writes the golden numbers of model_families_test beside this file, as Hugging Face transformers computes them (torch, f32, CPU).

    pip install torch transformers; tests/model/llama/families/make.py

Weights come from a formula that the test knows, too: nothing but configurations and results is kept.
"""
import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "vocab_size": 101, "hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "float32", "eos_token_id": 2}
MODELS = {
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "head_dim": 16, "max_position_embeddings": 512,
                "rope_theta": 1e6, "sliding_window": None, "tie_word_embeddings": False},
    "mistral_window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "max_position_embeddings": 512,
                       "rope_theta": 1e4, "sliding_window": 24, "tie_word_embeddings": False},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 512, "rope_theta": 1e6,
              "sliding_window": 64, "use_sliding_window": False, "max_window_layers": 2, "tie_word_embeddings": True},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16, "max_position_embeddings": 512,
              "rope_theta": 1e6, "sliding_window": None, "use_sliding_window": False, "attention_bias": False, "tie_word_embeddings": False},
    "qwen3_yarn": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16, "max_position_embeddings": 64,
                   "rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
                   "sliding_window": None, "attention_bias": False, "tie_word_embeddings": False},
}
PROMPTS = [(1, 12), (7, 17), (90, 12)]  # tokens, and how many follow
WINDOW_PROMPTS = [(1, 12), (7, 16), (20, 4)]  # within the window


def mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name, count):
    """[count] numbers in [0, 1): SplitMix64 from the FNV-1a hash of the name, 24 bits of each."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = mix(np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (z >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


def weights(name, shape):
    numbers = uniform(name, int(np.prod(shape))).reshape(shape) - np.float32(0.5)
    if len(shape) > 1:
        return numbers * np.float32(0.5)
    return numbers * np.float32(2.0) if name.endswith(".bias") else np.float32(1.0) + numbers * np.float32(0.5)


def case(model, prompt, count):
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return {"prompt": prompt, "greedy_tokens": tokens[len(prompt):],
            "last_prompt_logits": [round(x, 5) for x in logits[-1].tolist()],
            "prompt_logprob_of_next": [round(float(logprobs[i, prompt[i + 1]]), 5) for i in range(len(prompt) - 1)]}


def main():
    for name, sizes in MODELS.items():
        config = {**COMMON, **sizes}
        fields = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "torch_dtype")}
        model_class = getattr(transformers, config["architectures"][0])
        model = model_class(model_class.config_class(**fields, attn_implementation="eager")).float().eval()
        assert model.config.rope_parameters["rope_theta"] == config["rope_theta"], model.config.rope_parameters
        assert model.config.rope_parameters["rope_type"] == config.get("rope_scaling", {}).get("rope_type", "default")
        state = {key: torch.from_numpy(weights(key, tuple(value.shape)).copy()) for key, value in model.state_dict().items()
                 if key != "lm_head.weight" or not config["tie_word_embeddings"]}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        prompts = WINDOW_PROMPTS if config["sliding_window"] == 24 else PROMPTS
        cases = [case(model, [int(x * 101) for x in uniform(f"prompt {name} {n}", n)], count) for n, count in prompts]
        golden = {"made_by": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}", "config": config, "cases": cases}
        (HERE / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
