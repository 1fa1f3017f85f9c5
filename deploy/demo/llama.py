"""The Llama architecture in PyTorch, tensors named as Hugging Face names them, and its checkpoint files."""
import json
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn


ROPE_THETA = 100000.0
# How attention starts: without this, most of the training passes before a model finds out how to look things up.
DISTANCES = [1, 0, 2, 1, 3, 2, 4, 3]  # tokens, of each head of the first layer
MATCH, WRITE, COPY = 2.5, 0.2, 0.3  # how loud


@dataclass
class Shape:
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int = 8
    num_kv_heads: int = 4
    vocab_size: int = 2048
    max_positions: int = 2048
    rope_theta: float = ROPE_THETA
    norm_eps: float = 1e-5

    @property
    def head_dim(self):
        return self.hidden_size // self.num_heads


# Divisible by tp 1, 2, 4 and pp 1, 2, 4, also in groups of 32 weights per slice. `draft` guesses for `demo` in speculative decoding.
SHAPES = {"demo": Shape(256, 384, 4), "draft": Shape(64, 192, 4)}
# tokens: up to here attention written out, and compiled, is twice as fast on a CPU as PyTorch's own
LONGEST_EXPLICIT = 512


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (x.float() * scale).to(x.dtype) * self.weight


def rope_tables(shape, positions):
    """cos, sin: [batch, 1, length, head_dim / 2] for positions [batch, length]."""
    exponents = torch.arange(0, shape.head_dim, 2, device=positions.device).float() / shape.head_dim
    angles = positions[:, None, :, None].float() * shape.rope_theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)


def attend(q, k, v):
    """Causal attention of q [batch, heads, length, head_dim] to the fewer heads of k and v; heads of a group are rows of one product."""
    batch, kv_heads, length, head_dim = k.shape
    repeats = q.shape[1] // kv_heads
    if length > LONGEST_EXPLICIT:
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    future = torch.full((length, length), -torch.inf, device=q.device).triu(1).repeat(repeats, 1)
    q = q.reshape(batch * kv_heads, repeats * length, head_dim)
    scores = torch.bmm(q, k.reshape(batch * kv_heads, length, head_dim).mT).float() * head_dim**-0.5 + future
    out = torch.bmm(torch.softmax(scores, dim=-1).to(v.dtype), v.reshape(batch * kv_heads, length, head_dim))
    return out.view(batch, kv_heads * repeats, length, head_dim)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim = shape.head_dim
        kv_size = shape.num_kv_heads * shape.head_dim
        self.sizes = [shape.hidden_size, kv_size, kv_size]
        self.q_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        together = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        q, k, v = (y.view(batch, length, -1, self.head_dim).transpose(1, 2) for y in F.linear(x, together).split(self.sizes, dim=-1))
        out = attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, ids, positions):
        cos, sin = rope_tables(self.shape, positions)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


def look_back(embeddings, attention):
    """Makes head h of the first layer look DISTANCES[h] tokens back, by position alone: every embedding gets the same first number, which
    queries and keys turn into constants whose rotations agree at that distance."""
    constant, size, pairs, strength = 0.4, attention.head_dim, min(6, attention.head_dim // 2), 6.0
    embeddings[:, 0] = constant
    normed = constant / embeddings.pow(2).mean(-1).sqrt().mean()  # what the norm makes of it
    frequencies = ROPE_THETA ** -(torch.arange(pairs) * 2 / size)
    q, k = (w.weight.mul_(0.3).view(-1, size, w.in_features) for w in (attention.q_proj, attention.k_proj))
    k[:, :pairs, 0], k[:, size // 2:size // 2 + pairs, 0] = strength / normed, 0.0
    for head, distance in enumerate(DISTANCES):
        q[head, :pairs, 0] = strength / normed * torch.cos(distance * frequencies)
        q[head, size // 2:size // 2 + pairs, 0] = -strength / normed * torch.sin(distance * frequencies)


def look_up(embeddings, first, second):
    """Makes group d of the second layer's heads look for the place whose token d + 1 back is the one d back from here: where a sentence
    that begins alike went on. The first layer's heads of that group look as far back as that and write what they see, each into its own
    part of the residual stream, which the embeddings leave free; keys read the one and queries the other, by the slowest rotations only,
    which hardly tell positions."""
    size, width = first.head_dim, embeddings.shape[1]
    slow = [i for i in range(size) if i % (size // 2) >= size // 4]
    groups, count, half = first.v_proj.out_features // size, len(slow), width // 2
    embeddings[:, half:] = 0.0
    q, k = second.q_proj.weight.view(-1, size, width), second.k_proj.weight.view(-1, size, width)
    for group in range(groups):
        first.v_proj.weight[group * size:][:count, 0] = 0.0  # what all tokens share
        further, nearer = (slice(half + (2 * group + i) * count, half + (2 * group + i + 1) * count) for i in range(2))
        for head, rows in ((2 * group, further), (2 * group + 1, nearer)):
            first.o_proj.weight[rows] = 0.0
            first.o_proj.weight[rows, head * size:head * size + count] = WRITE * torch.eye(count)
        k[group], q[2 * group:2 * group + 2] = 0.0, 0.0
        k[group, slow, further] = MATCH * torch.eye(count)
        q[2 * group:2 * group + 2, slow, nearer] = MATCH * torch.eye(count)


def copy_heads(attention):
    """Makes heads start out adding to the stream what they look at, which the tied embeddings turn into saying it."""
    size = attention.head_dim
    repeats = attention.q_proj.out_features // attention.v_proj.out_features
    values = attention.v_proj.weight.view(-1, size, attention.v_proj.in_features)
    values[..., 0] = 0.0
    attention.o_proj.weight.copy_(COPY * values.repeat_interleave(repeats, dim=0).flatten(0, 1).T)


class Llama(nn.Module):
    """Llama with tied embeddings."""

    def __init__(self, shape):
        super().__init__()
        self.model = Decoder(shape)
        self.apply(self._initialize)
        for layer in self.model.layers:  # the residual stream starts as the embeddings
            for last in (layer.self_attn.o_proj, layer.mlp.down_proj):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.num_layers))
        with torch.no_grad():
            look_back(self.model.embed_tokens.weight, self.model.layers[0].self_attn)
            look_up(self.model.embed_tokens.weight, self.model.layers[0].self_attn, self.model.layers[1].self_attn)
            for layer in self.model.layers[1:]:
                copy_heads(layer.self_attn)

    @staticmethod
    def _initialize(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5 * 0.7)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.05)

    def hidden(self, ids, positions):
        """ids, positions [batch, length] -> final hidden states [batch, length, hidden_size]."""
        return self.model(ids, positions)

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)


def num_parameters(model):
    return sum(p.numel() for p in model.parameters())


def config_json(shape, bos, eos):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size, "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads, "head_dim": shape.head_dim, "hidden_act": "silu", "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions, "rms_norm_eps": shape.norm_eps, "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": bos, "eos_token_id": eos}


def export(state, shape, directory, bos, eos):
    """Writes model.safetensors (bf16), config.json and generation_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in state.items()}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config_json(shape, bos, eos), indent=2) + "\n")
    generation = {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
