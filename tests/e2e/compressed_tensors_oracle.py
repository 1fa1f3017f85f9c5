#!/usr/bin/env python3
"""Compares Lockstep's reading and writing of quantized checkpoints with the compressed-tensors library.

    compressed_tensors_oracle.py LOCKSTEP [--keep DIR]

Needs tests/e2e/requirements-quantized.txt. Makes a small random Llama, then

  theirs to ours: quantizes it with compressed-tensors (integers in groups and per row, FP8 per row and per matrix) and writes what
  the library says these weights are worth as a plain checkpoint beside it. Both must give the same tokens and the same bits of
  log-probabilities.

  ours to theirs: has `lockstep model quantize` write int8 and int4; what compressed-tensors unpacks of that must be as near to the
  original as rounding to nearest is.

Exits 1 when something differs.
"""
import argparse
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from safetensors.torch import load_file, save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 640,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}
PROMPTS = ["1,5,9,300,7,42", "3", ",".join(str(i * 37 % 640) for i in range(60))]


def is_matrix(name):
    return name.endswith("_proj.weight")


def write(directory, tensors, quantization=None):
    directory.mkdir(parents=True)
    config = dict(CONFIG, **({"quantization_config": quantization} if quantization else {}))
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors",
              metadata={"format": "pt"})


def random_model(seed=1):
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
    return tensors


def scales_of(weight, args):
    """Symmetric: the largest magnitude of a group, row or matrix becomes the largest number of the format."""
    top = 448.0 if args.type == "float" else 2 ** (args.num_bits - 1) - 1
    if args.strategy == "group":
        magnitude = weight.unflatten(1, (-1, args.group_size)).abs().amax(-1)
    elif args.strategy == "channel":
        magnitude = weight.abs().amax(1, keepdim=True)
    else:
        magnitude = weight.abs().max().reshape(1)
    return magnitude / top


def quantize_theirs(tensors, args):
    """The checkpoint as compressed-tensors keeps it, and what it is worth."""
    stored, worth = {}, {}
    for name, weight in tensors.items():
        if not is_matrix(name):
            stored[name] = worth[name] = weight
            continue
        scale = scales_of(weight, args)
        zero = torch.zeros_like(scale)
        q = quantize(weight, scale, zero, args, dtype=torch.float8_e4m3fn if args.type == "float" else torch.int8)
        worth[name] = dequantize(q, scale, zero, args, dtype=torch.float32)
        at = name.removesuffix(".weight")
        stored[at + ".weight_scale"] = scale
        if args.type == "float":
            stored[name] = q
        else:
            stored[at + ".weight_packed"] = pack_to_int32(q, args.num_bits)
            stored[at + ".weight_shape"] = torch.tensor(weight.shape)
    return stored, worth


def quantization_config(args, form):
    weights = {key: value for key, value in json.loads(args.model_dump_json()).items() if value is not None}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}}


def answers(lockstep, model, *flags):
    """Tokens and log-probabilities of each prompt."""
    server = subprocess.Popen([lockstep, "serve", model, "--listen", "127.0.0.1:0", "--json", "--num-kv-blocks", "64", *flags],
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


def check_theirs(lockstep, tensors, directory):
    formats = {
        "int4 groups of 128": ("pack-quantized", QuantizationArgs(num_bits=4, strategy="group", group_size=128)),
        "int4 groups of 16": ("pack-quantized", QuantizationArgs(num_bits=4, strategy="group", group_size=16)),
        "int4 per row": ("pack-quantized", QuantizationArgs(num_bits=4, strategy="channel")),
        "int8 groups of 128": ("pack-quantized", QuantizationArgs(num_bits=8, strategy="group", group_size=128)),
        "int8 per row": ("pack-quantized", QuantizationArgs(num_bits=8, strategy="channel")),
        "FP8 per row": ("float-quantized", QuantizationArgs(num_bits=8, type="float", strategy="channel")),
        "FP8 per matrix": ("float-quantized", QuantizationArgs(num_bits=8, type="float", strategy="tensor")),
    }
    failures = 0
    for name, (form, args) in formats.items():
        stored, worth = quantize_theirs(tensors, args)
        at = directory / name.replace(" ", "-")
        write(at / "stored", stored, quantization_config(args, form))
        write(at / "worth", worth)
        same = answers(lockstep, at / "stored") == answers(lockstep, at / "worth")
        failures += not same
        print(f"{name:20s} {'same bits' if same else 'DIFFERS'}", flush=True)
    return failures


def check_ours(lockstep, tensors, directory):
    failures = 0
    for bits, group in ((8, 64), (4, 32)):
        out = directory / f"ours-int{bits}"
        subprocess.run([lockstep, "model", "quantize", directory / "plain", out, "--to", f"int{bits}", "--quiet"], check=True)
        args = QuantizationArgs(num_bits=bits, strategy="group", group_size=group)
        ours, error, plain_error = load_file(out / "model.safetensors"), 0.0, 0.0
        for name, weight in tensors.items():
            if not is_matrix(name):
                continue
            at = name.removesuffix(".weight")
            scale = ours[at + ".weight_scale"].float()
            q = unpack_from_int32(ours[at + ".weight_packed"], bits, torch.Size(ours[at + ".weight_shape"].tolist()))
            back = dequantize(q, scale, torch.zeros_like(scale), args, dtype=torch.float32)
            plain_scale = scales_of(weight, args)
            zero = torch.zeros_like(plain_scale)
            plain = dequantize(quantize(weight, plain_scale, zero, args, dtype=torch.int8), plain_scale, zero, args, dtype=torch.float32)
            error += float((back - weight).square().sum())
            plain_error += float((plain - weight).square().sum())
        ratio = (error / plain_error) ** 0.5
        good = ratio < 1.02  # our scales are rounded to bf16
        failures += not good
        print(f"{f'ours, int{bits}':20s} {ratio:.3f} times the error of rounding to nearest{'' if good else ': DIFFERS'}", flush=True)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    parser.add_argument("--keep", type=pathlib.Path, help="make the checkpoints there and leave them")
    options = parser.parse_args()
    directory = options.keep or pathlib.Path(tempfile.mkdtemp(prefix="compressed_tensors_"))
    tensors = random_model()
    write(directory / "plain", tensors)
    try:
        failures = check_theirs(options.lockstep, tensors, directory) + check_ours(options.lockstep, tensors, directory)
    finally:
        if not options.keep:
            shutil.rmtree(directory)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
