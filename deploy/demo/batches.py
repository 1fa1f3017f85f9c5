"""Batches of training conversations as token ids."""
import torch
from tokenizers import Tokenizer

from generator import BEGIN, EARLY_TASKS, END, LATE_TASKS, conversation, turn

# The weight of the loss on what the assistant does not say: it teaches copying early, and little else.
OTHER_WEIGHT = 0.1
# (share of the training done, lengths to draw from): long conversations cost most and teach least, so they come last.
CURRICULUM = [(0.0, [128]), (0.2, [128, 256]), (0.4, [256]), (0.85, [256] * 12 + [512]), (0.92, [256] * 20 + [512] * 2 + [1024, 2048])]
LATE = 0.65  # the share of the training after which stories are nearly all of the largest size, and of LATE_TASKS
JUMPING = 0.5  # the share of conversations with jumps in their positions, at the end of the training
MAX_POSITIONS = 2048


def lengths_at(progress):
    return [lengths for start, lengths in CURRICULUM if start <= progress][-1]


def size_at(progress, rng):
    """A size of stories at this share of the training: small ones first, and never large ones alone."""
    return min(1.0, 0.2 + 1.6 * progress) * rng.random() ** (0.25 if progress > LATE else 0.5)


class Writer:
    """Turns conversations into rows of token ids with a loss weight for each."""

    def __init__(self, tokenizer_file):
        self.tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self.begin = self.tokenizer.token_to_id(BEGIN)
        self.end = self.tokenizer.token_to_id(END)
        self.stop = self.tokenizer.token_to_id(".")

    def _ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def row(self, rng, length, progress, is_long):
        """ids and weights of `length` + 1 tokens: whole exchanges as long as they fit, then padding of weight 0."""
        ids, weights = [self.begin], [0.0]
        budget = rng.randint(length // 4, length - 250) if is_long else 0
        tasks = LATE_TASKS if progress > LATE else EARLY_TASKS
        system, exchanges = conversation(rng, size_at(progress, rng), budget, tasks)
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
        """(ids [rows, length + 1], weights alike, positions [rows, length]) of about `tokens` tokens."""
        length = rng.choice(lengths_at(progress))
        is_long = length >= 1024
        rows = [self.row(rng, length, progress, is_long and rng.random() < 0.8) for _ in range(max(1, tokens // length))]
        positions = [self._positions(rng, ids[:-1], rng.random() < JUMPING * progress) for ids, _ in rows]
        return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows]), torch.tensor(positions)

    def _positions(self, rng, ids, jumps):
        """0, 1, 2, ...; with jumps forward at the ends of a few sentences, short conversations teach what is far apart in long ones."""
        ends = [i + 1 for i, token in enumerate(ids) if token == self.stop]
        if not jumps or not ends:
            return list(range(len(ids)))
        where = rng.choices(ends, k=rng.randint(1, 4))
        left, offset, out = MAX_POSITIONS - len(ids), 0, []
        for i in range(len(ids)):
            for _ in range(where.count(i)):
                jump = rng.randint(0, int(left * rng.random()))
                offset, left = offset + jump, left - jump
            out.append(i + offset)
        return out
