#!/usr/bin/env python3
"""Speed of transformers with torch.compile and a static cache, for the sizes that gpu_bench measures.

    tests/gpu/compare_transformers.py [--shape llama-3.1-8b | --shape DIR-WITH-CONFIG] [--json FILE] [--bench FILE]

Weights are random bf16 of a config: nothing is loaded. A decode step takes one token of each sequence at a full context,
with the LM head and the greedy choice (gpu_bench's line "with both"); prefill computes logits of the last token alone
("with the head"), compiled or not, whichever is faster: generate() compiles decode steps alone, as a compiled prefill
gets a mask of its own and with it SDPA's slower kernels.
--bench names gpu_bench's JSON, whose speeds are printed beside.
"""
import argparse
import inspect
import json
import pathlib
import statistics
import sys
import time

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

SHAPES = {
    "llama-3.1-8b": dict(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=131072,
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "tiny": dict(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=256, max_position_embeddings=4096,
        tie_word_embeddings=False),
}


def model_config(shape):
    if shape in SHAPES:
        return LlamaConfig(**SHAPES[shape])
    path = pathlib.Path(shape)
    if not (path / "config.json").is_file():
        sys.exit(f"compare_transformers: no shape '{shape}': {', '.join(SHAPES)}, or a directory with a config.json")
    return LlamaConfig.from_pretrained(path)


def num_unrecorded():
    """Of compiled graphs so far: those that torch.compile did not make CUDA graphs of, which makes them slower."""
    return torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(device, call, repeats, before=lambda: None):
    """Of calls by themselves, after two that compile and record, and without what is done before each."""
    seconds = []
    for i in range(repeats + 2):
        before()
        synchronize(device)
        begin = time.perf_counter()
        call()
        synchronize(device)
        if i >= 2:
            seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        config = model_config(arguments.shape)
        config._attn_implementation = arguments.attention
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        with self.device:
            self.model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        self.vocab_size = config.vocab_size
        mode = arguments.mode
        self.step = torch.compile(self.model.forward, mode=mode, fullgraph=True) if mode != "eager" else self.model.forward
        # Of transformers before 5, which would otherwise ask the cache in the midst of the graph.
        self.takes_cache_position = "cache_position" in inspect.signature(self.model.forward).parameters

    def cache(self, length):
        return StaticCache(config=self.model.config, max_cache_len=length)

    def tokens(self, *size):
        return torch.randint(self.vocab_size, size, device=self.device)

    def inputs(self, ids, positions, cache):
        named = dict(input_ids=ids, position_ids=positions, past_key_values=cache, logits_to_keep=1)
        if self.takes_cache_position:
            named["cache_position"] = positions[0]
        return named

    def forget(self):
        """Each size is compiled for itself, not as one of several."""
        torch._dynamo.reset()

    def prefill(self, tokens):
        """Its seconds, and how."""
        self.forget()
        ids = self.tokens(1, tokens)
        positions = torch.arange(tokens, device=self.device)[None]
        cache = self.cache(tokens)
        # Its tensors are made here, not in the compiled step, whose memory the next call overwrites.
        self.model(**self.inputs(ids, positions, cache))

        def measure(step):
            def call():
                step(**self.inputs(ids, positions, cache))

            # So that every call writes the same positions.
            return median_seconds(self.device, call, max(1, self.arguments.repeats // 4), cache.reset)

        steps = {", not compiled": self.model.forward} | ({} if self.arguments.mode == "eager" else {"": self.step})
        return min((measure(step), how) for how, step in steps.items())

    def decode(self, sequences, context):
        """A row of steps, each over all of the context but for the few tokens that the steps add."""
        self.forget()
        repeats = self.arguments.repeats
        cache = self.cache(context + repeats + 8)
        chunk = max(1, 8192 // sequences)  # of the prompts that fill the cache
        for begin in range(0, context - 1, chunk):
            end = min(begin + chunk, context - 1)
            positions = torch.arange(begin, end, device=self.device).expand(sequences, -1)
            self.model(**self.inputs(self.tokens(sequences, end - begin), positions, cache))
        state = {"ids": self.tokens(sequences, 1),
                 "positions": torch.full((sequences, 1), context - 1, device=self.device)}

        def call():
            logits = self.step(**self.inputs(state["ids"], state["positions"], cache)).logits
            state["ids"] = logits[:, -1].argmax(-1, keepdim=True).clone()
            state["positions"] = state["positions"] + 1

        return median_seconds(self.device, call, repeats)


def of_bench(path):
    """Seconds of gpu_bench's steps: {("decode", sequences, context): ..., ("prefill", tokens): ...}."""
    if path and not pathlib.Path(path).is_file():
        sys.exit(f"compare_transformers: no file '{path}' to print beside")
    report = json.loads(pathlib.Path(path).read_text()) if path else {}
    seconds = {("decode", one["sequences"], one["context"]): one["with_both"]["step_seconds"]
               for one in report.get("decode", []) if "with_both" in one}
    if "prefill" in report:
        seconds["prefill", report["prefill"]["tokens"]] = report["prefill"]["seconds_with_head"]
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--decode", default="1,64", help="sequences in a decode step")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prefill", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile, or eager")
    parser.add_argument("--attention", default="sdpa")
    parser.add_argument("--json", help="file for what was measured")
    parser.add_argument("--bench", help="gpu_bench's JSON of the same sizes")
    arguments = parser.parse_args()

    beside = of_bench(arguments.bench)
    bench = Bench(arguments)
    device = torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu"
    print(f"{device}: torch {torch.__version__}, transformers {transformers.__version__}, {arguments.shape}, bf16, "
          f"{arguments.mode}, {arguments.attention}", flush=True)
    measured = []
    unrecorded = 0

    def keep(what, size, seconds, ours):
        nonlocal unrecorded
        speed = size["tokens"] / seconds
        line = f"{what:34} {speed:10.1f} tokens/s  {1e3 * seconds:9.3f} ms"
        if ours:
            line += f"; gpu_bench {1e3 * ours:9.3f} ms, {seconds / ours:.2f} times as fast"
        if num_unrecorded() > unrecorded:
            line += "; not as a CUDA graph"
            unrecorded = num_unrecorded()
        print(line, flush=True)
        measured.append({"what": what, "seconds": seconds, "tokens_per_s": speed, **size})
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps({"device": device, "measured": measured}, indent=1))

    with torch.inference_mode():
        for sequences in map(int, arguments.decode.split(",")):
            seconds = bench.decode(sequences, arguments.context)
            keep(f"decode of {sequences} at context {arguments.context}",
                 {"tokens": sequences, "context": arguments.context}, seconds,
                 beside.get(("decode", sequences, arguments.context)))
        seconds, how = bench.prefill(arguments.prefill)
        keep(f"prefill of {arguments.prefill}{how}", {"tokens": arguments.prefill}, seconds,
             beside.get(("prefill", arguments.prefill)))


if __name__ == "__main__":
    main()
