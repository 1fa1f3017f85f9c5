"""GPTQ and AWQ as GPTQModel quantizes, saves and loads them: both formats of zero points, groups, act-order."""
import contextlib
import json
import os
import sys
import warnings

# Before the import. Its packing extension would be compiled first; with fewer workers than two it does not start.
os.environ |= {"GPTQMODEL_DISABLE_PACK_EXT": "1", "GPTQMODEL_CPU_WORKERS": "2", "TORCHDYNAMO_DISABLE": "1"}

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tiny_llama import CONFIG, is_matrix, random_model, write

with contextlib.redirect_stdout(sys.stderr):
    from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

FORMATS = {
    "int4 groups of 128": dict(bits=4, group_size=128, desc_act=False),
    "int4 groups of 32, asymmetric": dict(bits=4, group_size=32, sym=False, desc_act=False),
    "int4 groups of 64, asymmetric, act-order, v2": dict(bits=4, group_size=64, sym=False, desc_act=True, format="gptq_v2"),
    "int4 groups of 32, act-order, v2": dict(bits=4, group_size=32, desc_act=True, format="gptq_v2"),
    "int8 groups of 32, asymmetric": dict(bits=8, group_size=32, sym=False, desc_act=False),
    "int8 per row, act-order": dict(bits=8, group_size=-1, desc_act=True),
    "AWQ, bf16, groups of 64": dict(bits=4, group_size=64, quant_method="awq", format="gemm"),
    "AWQ, bf16, groups of 32, asymmetric": dict(bits=4, group_size=32, sym=False, quant_method="awq", format="gemm"),
}


def write_original(directory):
    write(directory, random_model(one_sided=True))
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(CONFIG["vocab_size"])}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="t1", eos_token="t2", pad_token="t0").save_pretrained(directory)


def quantize(original, stored, arguments):
    # AWQ it quantizes in 16 bits only.
    dtype = torch.bfloat16 if "quant_method" in arguments else torch.float32
    model = GPTQModel.load(str(original), QuantizeConfig(device="cpu", offload_to_disk=False, **arguments), dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    batches = [torch.randint(3, CONFIG["vocab_size"], (64,), generator=generator).tolist() for _ in range(8)]
    model.quantize([dict(input_ids=ids, attention_mask=[1] * len(ids)) for ids in batches], batch_size=8)
    model.save(str(stored))


def worth_of(stored):
    """What the library makes of the file. Scales as f32, for a product in 16 bits would be rounded; f32 are rounded to bf16 where that is
    the model's dtype."""
    tensors = {name: tensor for name, tensor in load_file(stored / "model.safetensors").items() if name.endswith(".weight")}
    dtype = tensors["model.norm.weight"].dtype
    backend = BACKEND.AWQ_TORCH if dtype == torch.bfloat16 else BACKEND.GPTQ_TORCH
    model = GPTQModel.load(str(stored), backend=backend, device="cpu",
                           dtype=torch.float16 if dtype == torch.float32 else dtype).model
    for name, module in model.named_modules():
        if isinstance(module, (TorchLinear, AwqTorchLinear)):
            module.scales = module.scales.float()
        if isinstance(module, TorchLinear):
            tensors[name + ".weight"] = TorchLinear.dequantize_weight(module).t().to(dtype)
        if isinstance(module, AwqTorchLinear):
            tensors[name + ".weight"] = dequantize_gemm(module.qweight, module.qzeros, module.scales, module.bits, module.group_size).t().to(dtype)
    assert {name for name in tensors if is_matrix(name)} == {name for name in random_model() if is_matrix(name)}
    return tensors


def checkpoints(directory):
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(action="ignore"):
        write_original(directory / "original")
    for name, arguments in FORMATS.items():
        at = directory / name.replace(" ", "-").replace(",", "")
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(action="ignore"):
            quantize(directory / "original", at / "stored", arguments)
            worth = worth_of(at / "stored")
        for file in (at / "stored").glob("tokenizer*"):
            file.unlink()  # Lockstep has no kind of tokenizer that is a list of words
        config = json.loads((at / "stored" / "config.json").read_text())
        del config["quantization_config"]
        write(at / "worth", worth, config=config)
        yield name, at
