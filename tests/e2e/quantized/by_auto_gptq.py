"""GPTQ as AutoGPTQ quantizes and packs it, which most published checkpoints were made with."""
import logging
from unittest import mock

import torch

from bare_packages import leave_bare
from tiny_llama import is_matrix, random_model, write

logging.disable(logging.WARNING)  # its CUDA extension is not needed
leave_bare("auto_gptq", "auto_gptq.nn_modules")
from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
from auto_gptq.quantization import GPTQ

# Weights are not one-sided here: AutoGPTQ's packer spoils the words that hold a zero point of 0.
FORMATS = {
    "int4 groups of 128, act-order": dict(bits=4, group_size=128, sym=True, desc_act=True),
    "int4 groups of 32, asymmetric": dict(bits=4, group_size=32, sym=False, desc_act=False),
    "int4 groups of 64, asymmetric, act-order, static": dict(bits=4, group_size=64, sym=False, desc_act=True, static_groups=True),
    "int4 per row, asymmetric": dict(bits=4, group_size=-1, sym=False, desc_act=False),
    "int8 groups of 64": dict(bits=8, group_size=64, sym=True, desc_act=False),
    "int4 groups of 128, zeros as biases": dict(bits=4, group_size=128, sym=True, desc_act=False, bias=True),  # as older releases
}


def quantize(weight, inputs, bits, group_size, sym, desc_act, static_groups=False, bias=False):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.clone()
    gptq = GPTQ(linear)
    gptq.quantizer.configure(bits, perchannel=True, sym=sym, mse=False)
    gptq.add_batch(inputs, None)
    with mock.patch("torch.cuda.synchronize"):
        scale, zero, g_idx = gptq.fasterquant(group_size=group_size, actorder=desc_act, static_groups=static_groups)
    packed = QuantLinear(bits, group_size, weight.shape[1], weight.shape[0], bias=bias)
    linear.half()  # as AutoGPTQ's pack_model leaves scales
    packed.pack(linear, scale.half(), zero.half(), g_idx)
    return packed


def worth_of(packed):
    """What the packed layer makes of the unit vectors. Scales as f32, for a product in f16 would be rounded."""
    packed.scales = packed.scales.float()
    return packed(torch.eye(packed.infeatures)).t()


def checkpoints(directory):
    generator = torch.Generator().manual_seed(2)
    for name, arguments in FORMATS.items():
        stored, worth = {}, {}
        for tensor, weight in random_model().items():
            if not is_matrix(tensor):
                stored[tensor] = worth[tensor] = weight
                continue
            # Inputs of different strength, for act-order to have something to order.
            inputs = torch.randn(256, weight.shape[1], generator=generator) * torch.rand(weight.shape[1], generator=generator)
            packed = quantize(weight, inputs, **arguments)
            stored |= {tensor.removesuffix("weight") + key: value.clone() for key, value in packed.state_dict().items()}
            worth[tensor] = worth_of(packed)
        at = directory / name.replace(" ", "-").replace(",", "")
        config = {key: value for key, value in arguments.items() if key != "bias"}
        write(at / "stored", stored, dict(config, quant_method="gptq", damp_percent=0.01, true_sequential=True))
        write(at / "worth", worth)
        yield name, at
