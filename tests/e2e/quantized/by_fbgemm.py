"""FP8 as transformers' fbgemm_fp8 writes it, attention left as it is. fbgemm's kernel runs on GPUs only: its sum over rows is made here,
the names, shapes and dtypes of tensors are transformers'."""
import json
from unittest import mock

import torch
from transformers import FbgemmFp8Config, LlamaConfig, LlamaForCausalLM
from transformers.integrations import fbgemm_fp8
from transformers.quantizers.quantizer_fbgemm_fp8 import FbgemmFp8HfQuantizer

from tiny_llama import CONFIG, is_matrix, random_model, write


def quantize_fp8_per_row(weight):
    """torch.ops.fbgemm.quantize_fp8_per_row: the largest magnitude of a row becomes 448."""
    scale = weight.abs().amax(1) / 448
    return (weight / scale[:, None]).to(torch.float8_e4m3fn), scale


def checkpoints(directory):
    config = FbgemmFp8Config(modules_to_not_convert=["lm_head", ".*self_attn"])
    with mock.patch.object(fbgemm_fp8, "get_quantize_fp8_per_row", lambda: quantize_fp8_per_row), torch.device("meta"):
        model = fbgemm_fp8.replace_with_fbgemm_fp8_linear(LlamaForCausalLM(LlamaConfig(**CONFIG)), config.modules_to_not_convert, config)
    operation = fbgemm_fp8.FbgemmFp8Quantize(FbgemmFp8HfQuantizer(config))
    stored, worth = {}, {}
    for name, weight in random_model().items():
        if not isinstance(model.get_submodule(name.rpartition(".")[0]), fbgemm_fp8.FbgemmFp8Linear):
            stored[name] = worth[name] = weight
            continue
        with torch.no_grad():
            made = operation.convert({name: [weight]}, model=model)
        stored |= {key: value.detach() for key, value in made.items()}
        worth[name] = stored[name].float() * stored[name + "_scale"]
    expected = model.state_dict()
    assert stored.keys() == expected.keys(), stored.keys() ^ expected.keys()
    assert all(stored[name].shape == tensor.shape for name, tensor in expected.items())
    assert sum(is_matrix(name) and stored[name].dtype == torch.float8_e4m3fn for name in worth) == 3 * CONFIG["num_hidden_layers"]
    write(directory / "stored", stored, json.loads(json.dumps(config.to_dict(), default=lambda value: value.value)))
    write(directory / "worth", worth)
    yield "FP8 per row, attention not", directory
