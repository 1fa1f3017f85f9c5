"""transformers' "fp8", as Qwen3's checkpoints come: what it writes, in blocks or with a scale to each matrix, and says it is worth."""
from types import SimpleNamespace

import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from tiny_llama import is_matrix, random_model, write


def checkpoints(directory):
    tensors = random_model()
    for name, block in (("blocks of 128 x 128", (128, 128)), ("blocks of 16 x 64", (16, 64)), ("per matrix", None)):
        config = FineGrainedFP8Config(weight_block_size=block, modules_to_not_convert=["lm_head"])
        quantizer = SimpleNamespace(quantization_config=config)
        stored, worth = {}, {}
        for key, weight in tensors.items():
            if not is_matrix(key):
                stored[key] = worth[key] = weight
                continue
            made = Fp8Quantize(quantizer).convert({key: weight})
            scales = made[key + "_scale_inv"]
            worth[key] = Fp8Dequantize(quantizer)._dequantize_one(made[key], scales, torch.float32)
            stored |= {key: made[key], key + "_scale_inv": scales if block else scales.reshape(())}
        assert sum(tensor.dtype == torch.float8_e4m3fn for tensor in stored.values()) == 7
        at = directory / name.replace(" ", "-")
        write(at / "stored", stored, {key: list(value) if isinstance(value, tuple) else getattr(value, "value", value)
                                      for key, value in config.to_dict().items()})
        write(at / "worth", worth)
        yield name, at
