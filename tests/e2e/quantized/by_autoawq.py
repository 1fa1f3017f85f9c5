"""AWQ as AutoAWQ packs it. Without its search for scales, which takes long and leaves the file's layout as it is."""
import warnings

import torch

from bare_packages import leave_bare
from tiny_llama import is_matrix, random_model, write

leave_bare("awq", "awq.models", "awq.modules", "awq.modules.linear")
from awq.models._config import AwqConfig
from awq.modules.linear.gemm import WQLinear_GEMM
from awq.utils.packing_utils import dequantize_gemm

GROUP_SIZES = [128, 64, 32]


def scales_and_zeros(weight, group_size):
    """As AwqQuantizer.pseudo_quantize_tensor chooses them: [rows, groups]."""
    groups = weight.unflatten(1, (-1, group_size))
    low, high = groups.amin(-1), groups.amax(-1)
    scales = (high - low).clamp(min=1e-5) / 15
    return scales, (-torch.round(low / scales)).clamp(0, 15)


def quantize(weight, group_size):
    scales, zeros = scales_and_zeros(weight, group_size)
    every = lambda table: table.repeat_interleave(group_size, dim=1)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = (torch.clamp(torch.round(weight / every(scales)) + every(zeros), 0, 15) - every(zeros)) * every(scales)
    return WQLinear_GEMM.from_linear(linear, 4, group_size, scales=scales.t().contiguous(), zeros=zeros.t().contiguous())


def worth_of(packed):
    """Scales as f32, for a product in f16 would be rounded."""
    return dequantize_gemm(packed.qweight, packed.qzeros, packed.scales.float(), packed.w_bit, packed.group_size).t()


def checkpoints(directory):
    warnings.simplefilter("ignore", DeprecationWarning)
    for group_size in GROUP_SIZES:
        stored, worth = {}, {}
        for tensor, weight in random_model(one_sided=True).items():
            if not is_matrix(tensor):
                stored[tensor] = worth[tensor] = weight
                continue
            packed = quantize(weight, group_size)
            stored |= {tensor.removesuffix("weight") + key: value for key, value in packed.state_dict().items()}
            worth[tensor] = worth_of(packed)
        at = directory / str(group_size)
        write(at / "stored", stored, AwqConfig(q_group_size=group_size).to_transformers_dict())
        write(at / "worth", worth)
        yield f"gemm, int4 groups of {group_size}", at
