"""Batches of training conversations, made by worker processes as fast as the trainer takes them."""
import multiprocessing
import pathlib
import random

import torch
from tokenizers import Tokenizer

from generator import BEGIN, END, conversation, turn

# The weight of the loss on what the assistant does not say: it teaches copying early, and little else.
OTHER_WEIGHT = 0.1
# (share of the training done, lengths to draw from): long conversations cost most and teach least, so they come last.
CURRICULUM = [(0.0, [160]), (0.12, [160, 256]), (0.3, [256]), (0.6, [256, 256, 512]), (0.8, [256, 256, 512, 512, 2048])]


def lengths_at(progress):
    return [lengths for start, lengths in CURRICULUM if start <= progress][-1]


def difficulty_at(progress):
    """The largest size of stories at this share of the training."""
    return min(1.0, 0.25 + 1.5 * progress)


class Writer:
    """Turns conversations into rows of token ids with a loss weight for each."""

    def __init__(self, tokenizer_file):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self.begin = self.tokenizer.token_to_id(BEGIN)
        self.end = self.tokenizer.token_to_id(END)

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def row(self, rng, length, size, is_long):
        """ids and weights of `length` + 1 tokens: whole exchanges as long as they fit, then padding of weight 0."""
        ids, weights = [self.begin], [0.0]
        budget = rng.randint(400, length - 250) if is_long else 0
        system, exchanges = conversation(rng, rng.random() ** 0.5 * size, budget)
        if system:
            said = self._ids(turn("system", system))
            ids += said
            weights += [OTHER_WEIGHT] * len(said)
        for exchange in exchanges:
            asked, answered = self._ids(turn("user", exchange.user)), self._ids(turn("assistant", exchange.answer))
            if len(ids) + len(asked) + len(answered) > length + 1:
                break
            ids += asked + answered
            weights += [OTHER_WEIGHT] * (len(asked) + 1) + [1.0] * (len(answered) - 1)
        padding = length + 1 - len(ids)
        return ids + [self.end] * padding, weights + [0.0] * padding

    def batch(self, rng, tokens, progress):
        """(ids, weights), each [rows, length + 1], of about `tokens` tokens."""
        length = rng.choice(lengths_at(progress))
        is_long = length > 1024
        rows = [self.row(rng, length, difficulty_at(progress), is_long and rng.random() < 0.8) for _ in range(max(1, tokens // length))]
        return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


def _work(tokenizer_file, seed, tokens, progress, queue):
    torch.set_num_threads(1)
    writer, rng = Writer(tokenizer_file), random.Random(seed)
    while True:
        ids, weights = writer.batch(rng, tokens, progress.value)
        queue.put((ids.numpy(), weights.numpy()))


class Batches:
    """Iterates over batches from `num_workers` processes; tell it the progress."""

    def __init__(self, tokenizer_file: pathlib.Path, tokens, num_workers, seed, progress=0.0):
        context = multiprocessing.get_context("spawn")
        self.progress = context.Value("d", progress)
        self.queue = context.Queue(maxsize=4 * num_workers)
        self.workers = [
            context.Process(target=_work, args=(str(tokenizer_file), seed * 1000 + i, tokens, self.progress, self.queue), daemon=True)
            for i in range(num_workers)]
        for worker in self.workers:
            worker.start()

    def next(self):
        ids, weights = self.queue.get()
        return torch.from_numpy(ids), torch.from_numpy(weights)

    def close(self):
        for worker in self.workers:
            worker.terminate()
