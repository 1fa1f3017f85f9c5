"""A small random Llama, what Lockstep says with it, and how checkpoints of it are written."""
import json
import pathlib
import signal
import subprocess

import torch
from safetensors.torch import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 640,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}
PROMPTS = ["1,5,9,300,7,42", "3", ",".join(str(i * 37 % 640) for i in range(60))]


def is_matrix(name):
    """Of those that are quantized: the LM head is not."""
    return name.endswith("_proj.weight")


def random_model(seed=1, one_sided=False):
    """one_sided: the first half of every 8th row is positive and of another negative, so that the zero points of asymmetric groups
    reach both ends of their range."""
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
    hidden, inter, kv = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    tensors = {"model.embed_tokens.weight": normal(CONFIG["vocab_size"], hidden) * 4, "model.norm.weight": torch.ones(hidden),
               "lm_head.weight": normal(CONFIG["vocab_size"], hidden) * 4}
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
                  "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden),
                  "mlp.down_proj": (hidden, inter)}
        tensors |= {f"{at}{name}.weight": normal(*shape) for name, shape in shapes.items()}
        tensors |= {f"{at}input_layernorm.weight": torch.ones(hidden), f"{at}post_attention_layernorm.weight": torch.ones(hidden)}
    for name, weight in tensors.items():
        if one_sided and is_matrix(name):
            half = weight.shape[1] // 2
            weight[1::8, :half] = weight[1::8, :half].abs()
            weight[6::8, :half] = -weight[6::8, :half].abs()
    return tensors


def write(directory: pathlib.Path, tensors, quantization=None, config=CONFIG):
    directory.mkdir(parents=True)
    config = dict(config, **({"quantization_config": quantization} if quantization else {}))
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors",
              metadata={"format": "pt"})


def answers(lockstep, model):
    """Tokens and log-probabilities of each prompt."""
    server = subprocess.Popen([lockstep, "serve", model, "--listen", "127.0.0.1:0", "--json", "--num-kv-blocks", "64"],
                              stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                break
        else:
            raise SystemExit(f"{model}: did not start")
        ids = [flag for prompt in PROMPTS for flag in ("--token-ids", prompt)]
        out = subprocess.run([lockstep, "generate", "--server", event["address"], *ids, "--max-tokens", "40", "--temperature", "0",
                              "--ignore-eos", "--logprobs", "3", "--json", "--quiet"], check=True, capture_output=True, text=True).stdout
        found = {reply["prompt_index"]: [(o["token_ids"], [(t["logprob"], t["top"]) for t in o["logprobs"]]) for o in reply["outputs"]]
                 for reply in map(json.loads, out.splitlines())}
        assert len(found) == len(PROMPTS) and all(len(outputs[0][1]) == 40 for outputs in found.values()), out
        return found
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
