#!/usr/bin/env python3
"""Compares Lockstep's tokenizer with Hugging Face's `tokenizers` on random strings.

    tokenizer_oracle.py TOKENIZE_TOOL SHARED_ASSETS [--count N] [--seed S]

TOKENIZE_TOOL is the test binary of that name. Besides the tokenizers under SHARED_ASSETS as they
are, it checks variants made from them that exercise the other supported components. Only
characters assigned before Unicode 14 are used: later ones depend on the regex library's tables.
"""
import argparse
import copy
import json
import pathlib
import random
import subprocess
import tempfile
import unicodedata

import tokenizers

WORDS = ["the", " Hello", "don't", "'LL", "I'\u017f", "\u212a", "\ufb06", "\u1e9e", "1234", "\r\n",
         "  ", "\t", "\u00a0", "\u3000", "\u0085", "\u180e", "\u200b", "\ufeff", "\u2028", "\u0000",
         "<s>", "</s>", "<|eot_id|>", "<|begin_of_text|>", "<tool>", "<tool>s", "<wide>", "\u2581",
         "<0x41>", "\u0301", "e\u0323\u0302\u0301", "\u0958", "\u212b", "\u1100\u1161\u11a8", "\u0e81\u0ec8\u0eba", "\U0001f468\u200d\U0001f469", "\u06f5\u0664", "\u2167", "\u00bd", "'"]


def old_characters():
    """Assigned since before Unicode 14, by Python's own table where it is old enough."""
    ranges = [(0, 0x250), (0x250, 0x700), (0x900, 0x1400), (0x1600, 0x1700), (0x2000, 0x2100),
              (0x3000, 0x3400), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFB00, 0xFB50),
              (0x1D400, 0x1D500), (0x1F300, 0x1F600)]
    table = unicodedata.ucd_3_2_0
    return [chr(c) for low, high in ranges for c in range(low, high)
            if table.category(chr(c)) not in ("Cn", "Cs")]


def random_text(rng, characters):
    pieces = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        if kind < 0.4:
            pieces.append(rng.choice(WORDS))
        elif kind < 0.6:
            pieces.append("".join(rng.choices(characters, k=rng.randrange(1, 6))))
        elif kind < 0.8:
            pieces.append("".join(rng.choices(" \n\r\tab'1S!<|", k=rng.randrange(1, 8))))
        else:
            pieces.append(rng.choice(" aZ0!\n\u00e9\u8a9e") * rng.randrange(1, 40))
    return "".join(pieces)


def next_id(data):
    ids = list(data["model"]["vocab"].values()) + [t["id"] for t in data["added_tokens"]]
    return max(ids) + 1


def added(data, content, **flags):
    token = {"id": next_id(data), "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": False}
    data["added_tokens"].append(token | flags)


def variants(shared):
    """Yields (name, tokenizer.json as a dict)."""
    llama3 = json.loads((shared / "tokenizers/llama3/tokenizer.json").read_text())
    stories = json.loads((shared / "models/stories260K/tokenizer.json").read_text())
    yield "llama3", llama3
    yield "stories260K", stories

    data = copy.deepcopy(llama3)
    data["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                             "use_regex": True}
    data["model"]["ignore_merges"] = False
    added(data, "<tool>", normalized=True)
    added(data, "<wide>", lstrip=True, rstrip=True, special=True)
    yield "gpt2 regex", data

    data = copy.deepcopy(llama3)  # as Qwen2's
    data["normalizer"] = {"type": "NFC"}
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
        "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
    data["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                              "use_regex": False}
    data["model"] |= {"ignore_merges": False, "continuing_subword_prefix": "",
                      "end_of_word_suffix": ""}
    added(data, "<tool>", special=True)
    yield "qwen2", data

    data = copy.deepcopy(llama3)
    data["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "Digits", "individual_digits": True})
    added(data, "<tool>")
    added(data, "<tool>s", rstrip=True)
    added(data, "<wide>", lstrip=True)
    yield "digits", data

    for scheme in ("always", "first", "never"):
        for split in (True, False):
            data = copy.deepcopy(stories)
            data["normalizer"] = None
            data["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581",
                                     "prepend_scheme": scheme, "split": split}
            if split:
                data["decoder"] = data["pre_tokenizer"]
            added(data, "<tool>")
            yield f"metaspace {scheme} split={split}", data

    data = copy.deepcopy(stories)
    added(data, "<tool>", normalized=True)
    added(data, "<wide>", normalized=True, special=True)
    yield "normalized added tokens", data

    for fuse in (True, False):
        data = copy.deepcopy(stories)
        data["model"] |= {"byte_fallback": False, "fuse_unk": fuse}
        yield f"unk fuse={fuse}", data


def run_tool(tool, directory, lines, *flags):
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    out = subprocess.run([tool, directory, *flags], input=stdin, capture_output=True, text=True,
                         check=True)
    return [json.loads(line) for line in out.stdout.rstrip("\n").split("\n")]


def compare(what, inputs, ours, theirs):
    wrong = [row for row in zip(inputs, ours, theirs) if row[1] != row[2]]
    for text, our, their in wrong[:3]:
        print(f"  {what}: {text!r}\n    ours   {our}\n    theirs {their}")
    return len(wrong)


def check(tool, name, data, texts, rng):
    with tempfile.TemporaryDirectory() as directory:
        (pathlib.Path(directory) / "tokenizer.json").write_text(json.dumps(data))
        oracle = tokenizers.Tokenizer.from_str(json.dumps(data))
        lines = [{"text": text} for text in texts]
        wrong = 0
        for flags in (["--special"], ["--special", "--parse-special"], ["--parse-special"]):
            oracle.encode_special_tokens = "--parse-special" not in flags
            theirs = [oracle.encode(t, add_special_tokens="--special" in flags).ids for t in texts]
            wrong += compare(" ".join(flags), texts, run_tool(tool, directory, lines, *flags),
                             theirs)
        # Of random ids, byte-fallback tokens only where they spell characters: on invalid runs we
        # differ on purpose (see model/tokenizer/token_decoder.h).
        plain = [i for i in range(oracle.get_vocab_size())
                 if oracle.id_to_token(i) and not oracle.id_to_token(i).startswith("<0x")]
        # Nor those that HF shows in their normalized form, as if they had been renamed.
        renamed = {t["id"] for t in data["added_tokens"] if t["normalized"] and data["normalizer"]}
        plain = [i for i in plain if i not in renamed]
        theirs = [ids for ids in theirs if not renamed.intersection(ids)]
        batches = theirs + [rng.choices(plain, k=rng.randrange(1, 20)) for _ in texts]
        for flags in ([], ["--special"]):
            theirs = [oracle.decode(ids, skip_special_tokens=not flags) for ids in batches]
            ours = run_tool(tool, directory, [{"ids": ids} for ids in batches], "--decode", *flags)
            wrong += compare("decode " + " ".join(flags), batches, ours, theirs)
    print(f"{name}: {len(texts)} texts, {wrong} differences")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tool")
    parser.add_argument("shared", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    characters = old_characters()
    wrong = 0
    for name, data in variants(args.shared):
        texts = [random_text(rng, characters) for _ in range(args.count)]
        wrong += check(args.tool, name, data, texts, rng)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
