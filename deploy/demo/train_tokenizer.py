"""Trains the demo model's tokenizer: byte-level BPE on the generator's words and on the LICENSE for ordinary English.

    python3 train_tokenizer.py MODEL_DIR

Digits stand alone. Every word of the world is one token: copying is then a single step, and an unseen name is made of known tokens.
"""
import json
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import words
from generator import BEGIN, END, SPECIAL_TOKENS, conversation

VOCAB_SIZE = 2048
PATTERN = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def whole_words():
    """What must be one token: names with and without the space before them, the rest with it."""
    names = words.FIRST_NAMES + words.LAST_NAMES
    rest = words.ADJECTIVES + words.NOUNS + words.PLACES + words.ANIMALS
    return words.FIRST_NAMES + [" " + word for word in names + rest]


def training_text():
    yield from whole_words() * 400
    rng = random.Random(7)
    for _ in range(1500):
        system, exchanges = conversation(rng, 1.0)
        for _, exchange in zip(range(10), exchanges):
            yield f"{system or ''} {exchange.user} {exchange.answer}"
    yield from (pathlib.Path(__file__).parents[2] / "LICENSE").read_text().splitlines()


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIAL_TOKENS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(training_text(), trainer)
    begin = (BEGIN, tokenizer.token_to_id(BEGIN))
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=[begin])
    return tokenizer


def check(tokenizer):
    """Refuses a tokenizer in which a word of the world is more than one token."""
    wrong = [w for w in whole_words() if len(tokenizer.encode(w, add_special_tokens=False).ids) != 1]
    if wrong:
        sys.exit(f"train_tokenizer: more than one token: {wrong}")


def write(tokenizer, directory):
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": END,
              "model_max_length": 2048, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} MODEL_DIR")
    tokenizer = train()
    check(tokenizer)
    write(tokenizer, pathlib.Path(sys.argv[1]))
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
