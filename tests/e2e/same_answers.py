#!/usr/bin/env python3
"""Compares answers of `lockstep generate --json`, files of the same names in two directories: the same tokens and
texts, log-probabilities but for rounding.

    same_answers.py EXPECTED GOT
"""
import json
import math
import pathlib
import sys

IGNORED = {"request_id", "timing", "num_guessed_tokens", "num_wrong_guesses"}
TOLERANCE = 2e-3


def differences(expected, got, where):
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in sorted((expected.keys() | got.keys()) - IGNORED):
            yield from differences(expected.get(key), got.get(key), f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for i, pair in enumerate(zip(expected, got)):
            yield from differences(*pair, f"{where}[{i}]")
    elif isinstance(expected, float) and isinstance(got, (int, float)):
        if not math.isclose(expected, got, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            yield f"{where} is {got}, not {expected}"
    elif expected != got:
        yield f"{where} is {got!r}, not {expected!r}"


def main(expected_dir, got_dir):
    names = sorted(path.name for path in pathlib.Path(expected_dir).iterdir())
    if not names:
        sys.exit(f"{expected_dir} holds no answers")
    for name in names:
        answers = [json.loads(pathlib.Path(directory, name).read_text()) for directory in (expected_dir, got_dir)]
        for difference in differences(*answers, f"answer {name}"):
            sys.exit(difference)


main(*sys.argv[1:])
