"""compressed-tensors: what it writes and says it is worth, and what it unpacks of `lockstep model quantize`."""
import json
import subprocess

import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from safetensors.torch import load_file

from tiny_llama import is_matrix, random_model, write

FORMATS = {
    "int4 groups of 128": ("pack-quantized", QuantizationArgs(num_bits=4, strategy="group", group_size=128)),
    "int4 groups of 16": ("pack-quantized", QuantizationArgs(num_bits=4, strategy="group", group_size=16)),
    "int4 per row": ("pack-quantized", QuantizationArgs(num_bits=4, strategy="channel")),
    "int8 groups of 128": ("pack-quantized", QuantizationArgs(num_bits=8, strategy="group", group_size=128)),
    "int8 per row": ("pack-quantized", QuantizationArgs(num_bits=8, strategy="channel")),
    "FP8 per row": ("float-quantized", QuantizationArgs(num_bits=8, type="float", strategy="channel")),
    "FP8 per matrix": ("float-quantized", QuantizationArgs(num_bits=8, type="float", strategy="tensor")),
    "FP8 per block": ("float-quantized", QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=[128, 64])),
}


def scales_of(weight, args):
    """Symmetric: the largest magnitude of a group, row or matrix becomes the largest number of the format."""
    top = 448.0 if args.type == "float" else 2 ** (args.num_bits - 1) - 1
    if args.strategy == "group":
        magnitude = weight.unflatten(1, (-1, args.group_size)).abs().amax(-1)
    elif args.strategy == "block":
        rows, columns = args.block_structure
        magnitude = weight.unflatten(1, (-1, columns)).unflatten(0, (-1, rows)).abs().amax((1, 3))
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


def checkpoints(directory):
    tensors = random_model()
    for name, (form, args) in FORMATS.items():
        stored, worth = quantize_theirs(tensors, args)
        at = directory / name.replace(" ", "-")
        write(at / "stored", stored, quantization_config(args, form))
        write(at / "worth", worth)
        yield name, at


def check_ours(lockstep, directory):
    """What `lockstep model quantize` writes must be as near to the original as rounding to nearest is."""
    tensors, failures = random_model(), 0
    write(directory / "plain", tensors)
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
        print(f"{f'compressed_tensors: ours, int{bits}':60s} {ratio:.3f} times the error of rounding to nearest{'' if good else ': DIFFERS'}",
              flush=True)
    return failures
