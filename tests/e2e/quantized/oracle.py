#!/usr/bin/env python3
"""Compares Lockstep's reading and writing of quantized checkpoints with the libraries that people make them with.

    oracle.py LOCKSTEP [--keep DIR] [--libraries NAME,...]

Needs requirements.txt beside it. Each library quantizes a small random Llama and writes it as it does, and what it says these weights
are worth is written as a plain checkpoint beside it: Lockstep must give the same tokens and the same bits of log-probabilities with both.
What `lockstep model quantize` writes is unpacked by compressed-tensors.

Exits 1 when something differs.
"""
import argparse
import importlib
import os
import pathlib
import shutil
import sys
import tempfile

import torch

from tiny_llama import answers

LIBRARIES = ["compressed_tensors", "gptqmodel", "auto_gptq", "autoawq", "fbgemm", "finegrained_fp8"]


def check(lockstep, library, directory):
    module, failures = importlib.import_module("by_" + library), 0
    for name, at in module.checkpoints(directory):
        same = answers(lockstep, at / "stored") == answers(lockstep, at / "worth")
        failures += not same
        print(f"{library + ': ' + name:60s} {'same bits' if same else 'DIFFERS'}", flush=True)
    if hasattr(module, "check_ours"):
        failures += module.check_ours(lockstep, directory)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", type=pathlib.Path)
    parser.add_argument("--keep", type=lambda name: pathlib.Path(name).absolute(), help="make the checkpoints there and leave them")
    parser.add_argument("--libraries", default=",".join(LIBRARIES), help="of " + ", ".join(LIBRARIES))
    options = parser.parse_args()
    directory = options.keep or pathlib.Path(tempfile.mkdtemp(prefix="quantized_oracle_"))
    directory.mkdir(parents=True, exist_ok=True)
    lockstep = options.lockstep.resolve()
    torch.set_num_threads(1)  # the matrices are small
    os.chdir(directory)  # GPTQModel writes logs where it is
    try:
        failures = sum(check(lockstep, library, directory / library) for library in options.libraries.split(","))
    finally:
        if not options.keep:
            shutil.rmtree(directory)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
