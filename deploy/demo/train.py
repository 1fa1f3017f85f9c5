"""Trains the demo model from nothing and exports it in Hugging Face layout.

    python3 train.py OUT_DIR                  the demo model: 80 minutes on 2 busy CPU cores with AVX-512 and BF16
    python3 train.py OUT_DIR --shape draft    the small one that drafts for it
    python3 train.py OUT_DIR --export-only    writes the model of the last checkpoint

OUT_DIR must hold tokenizer.json (train_tokenizer.py). A checkpoint is written every minute and continued from when the same command is run
again. OUT_DIR gets model.safetensors, config.json, generation_config.json, training.json and learning_curve.svg.

A process per core draws small batches until the step's are done, adds up their gradients and updates its share of the parameters: small
batches stay in the cache, and a core that others slow down does less.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

import torch
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F

import curve
from batches import Writer
from generator import END, render, test_questions
from llama import SHAPES, Llama, export, num_parameters
from optimizer import Shared

CHECKPOINT_SECONDS = 60
PADDED = [128, 256, 512, 1024, 2048]  # tokens of a question: on a CPU each new shape of a product has code made for it
LONGEST_COMPILED = 512  # tokens: each further length costs a compilation and has few batches
# Large blocks are kept rather than given back and zeroed again, which halves what a step costs; read by the C library when it starts.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33), "MALLOC_TOP_PAD_": str(1 << 28)}
# What a training reads until its learning rate is zero; after the first end it goes on, as if it had been as long as the next from the
# start: a second, smaller descent, from which the demo model learnt what it still mixed up.
ENDS = {"demo": [48e6, 57e6], "draft": [21e6]}
SMALL_STEPS = 0.15  # the share of the training whose steps have half the tokens


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="demo")
    parser.add_argument("--tokens", type=lambda text: [float(part) for part in text.split(",")], metavar="N[,N...]",
                        help="to train on; the learning rate ends at zero at each N (default: by shape)")
    parser.add_argument("--batches-per-step", type=int, default=8)
    parser.add_argument("--batch-tokens", type=int, default=1024, help="more on a GPU")
    parser.add_argument("--muon-lr", type=float, default=3e-4)
    parser.add_argument("--adam-lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--ranks", type=int, default=0, help="processes; default: one for each core, or one on a GPU")
    parser.add_argument("--eval-seconds", type=float, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--export-only", action="store_true")
    arguments = parser.parse_args()
    arguments.tokens = arguments.tokens or ENDS[arguments.shape]
    if arguments.tokens != sorted(arguments.tokens) or arguments.tokens[0] <= 0:
        parser.error("--tokens: must be positive and ascend")
    return arguments


class Run:
    """What the processes share of one training: parameters, how far it is, and what is next."""

    def __init__(self, arguments):
        self.arguments = arguments
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if on_gpu else "cpu")
        self.ranks = arguments.ranks or (1 if on_gpu else os.cpu_count())
        torch.manual_seed(arguments.seed)
        self.model = Llama(SHAPES[arguments.shape])
        self.shared = Shared(self.model, self.ranks)
        self.seconds, self.step, self.tokens, self.points = 0.0, 0, 0, []
        self.step_seconds = []
        self.checkpoint = arguments.out / "checkpoint.pt"
        self.writer = Writer(arguments.out / "tokenizer.json")
        context = multiprocessing.get_context("fork")
        self.barrier, self.claimed = context.Barrier(self.ranks), context.Value("q", 0)
        self.control = torch.zeros(4, dtype=torch.float64).share_memory_()  # progress, step, batches in the step, what to do
        self.sums = torch.zeros(self.ranks, 4, dtype=torch.float64).share_memory_()  # answers' loss, answers, tokens

    @property
    def progress(self):
        ends = self.arguments.tokens
        return min(1.0, self.tokens / next((end for end in ends if self.tokens < end), ends[-1]))

    def save(self):
        state = {"master": self.shared.master, "state": self.shared.state, "seconds": self.seconds, "step": self.step,
                 "tokens": self.tokens, "points": self.points, "shape": self.arguments.shape}
        torch.save(state, self.checkpoint.with_suffix(".tmp"))
        self.checkpoint.with_suffix(".tmp").rename(self.checkpoint)

    def load(self):
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=False)
        if state["shape"] != self.arguments.shape:
            raise SystemExit(f"train: {self.checkpoint} is of shape {state['shape']}, not {self.arguments.shape}; remove it")
        self.shared.master.copy_(state["master"])
        self.shared.state.copy_(state["state"])
        self.seconds, self.step, self.tokens, self.points = (state[k] for k in ("seconds", "step", "tokens", "points"))
        print(f"continuing at {self.seconds:.0f} s, step {self.step}", flush=True)

    def count_time(self, seconds):
        """A process that was stopped for a while has not trained then: a step counts as three usual ones at most."""
        self.step_seconds = self.step_seconds[-50:] + [seconds]
        if len(self.step_seconds) > 5:  # the first ones compile
            self.seconds += min(seconds, 3 * statistics.median(self.step_seconds))


TRAIN, EVALUATE, END_OF_TRAINING = range(3)


class Rank:
    """One of the processes: a copy of the model in bfloat16, which computes, and the shared float32 one, which learns."""

    def __init__(self, run, rank):
        torch.set_num_threads(1)
        self.run, self.rank = run, rank
        self.model = run.model.bfloat16().to(run.device)
        compiled = not run.arguments.no_compile
        self.compiled = torch.compile(self.model.hidden, dynamic=False) if compiled else self.model.hidden

    @torch.no_grad()
    def refresh(self):
        for p, master in zip(self.model.parameters(), self.run.shared.views(self.run.shared.master).values()):
            p.copy_(master)

    def loss(self, ids, weights, positions, rng):
        """The summed loss on the answers and on a sample of the rest, and (the answers' part, the number of answer tokens)."""
        forward = self.compiled if positions.shape[1] <= LONGEST_COMPILED else self.model.hidden
        hidden = forward(ids[:, :-1].contiguous(), positions).flatten(0, 1)
        weights, targets = weights[:, 1:].flatten(), ids[:, 1:].flatten()
        chosen = (torch.rand(weights.shape, generator=rng).to(weights.device) < weights).nonzero().squeeze(1)
        losses = F.cross_entropy(self.model.logits(hidden[chosen]).float(), targets[chosen], reduction="none")
        answers = weights[chosen] == 1.0
        return losses.sum(), losses.detach()[answers].sum(), answers.sum()

    def claim(self):
        with self.run.claimed.get_lock():
            self.run.claimed.value += 1
            return self.run.claimed.value - 1

    def gradients(self):
        """Adds up the gradients of the batches this process gets hold of."""
        run = self.run
        progress, step, batches, _ = run.control.tolist()
        flat = run.shared.gradients[self.rank].zero_()
        views = run.shared.views(flat)
        sums = run.sums[self.rank].zero_()
        while (index := self.claim()) < batches:
            seed = (run.arguments.seed * 1_000_003 + int(step)) * 1009 + index
            ids, weights, positions = run.writer.batch(random.Random(seed), run.arguments.batch_tokens, progress)
            ids, weights, positions = (t.to(run.device) for t in (ids, weights, positions))
            loss, answer_loss, answers = self.loss(ids, weights, positions, torch.Generator().manual_seed(seed))
            (loss / (0.3 * batches * run.arguments.batch_tokens)).backward()
            for name, p in self.model.named_parameters():
                views[name].add_(p.grad.to(views[name]))
                p.grad = None
            sums += torch.tensor([float(answer_loss), float(answers), positions.numel(), 0])

    def learning_rate_factor(self):
        """A short warm-up, then flat, then down to zero over the last 60 %."""
        progress, step, _, _ = self.run.control.tolist()
        return min(1.0, (step + 1) / 50, (1.0 - progress) / 0.6)

    def train_step(self):
        run, factor = self.run, self.learning_rate_factor()
        self.gradients()
        run.barrier.wait()
        arguments = run.arguments
        run.shared.update(self.rank, int(run.control[1]) + 1, arguments.muon_lr * factor, arguments.adam_lr * factor, arguments.weight_decay)
        run.barrier.wait()
        self.refresh()

    def follow(self, results=None, questions=None):
        """One round of what the control asks for; false at the end."""
        self.run.barrier.wait()
        what = int(self.run.control[3])
        if what == EVALUATE:
            results[self.rank] = accuracy(self, questions[self.rank::self.run.ranks])
            self.run.barrier.wait()
        elif what == TRAIN:
            self.train_step()
        return what != END_OF_TRAINING


def encode_questions(writer, questions):
    """(task, prompt ids, answer ids with the end) of each question, long and short ones mixed evenly."""
    encode = writer._ids
    encoded = [(q["task"], encode(render(q["messages"])), encode(q["answer"] + END)) for q in questions]
    return sorted(encoded, key=lambda q: len(q[1]))


@torch.no_grad()
def accuracy(rank, questions):
    """Per task, [how many held-out questions greedy decoding answers exactly, how many there are]: every token of the answer is the
    likeliest after those before it."""
    scores = {}
    for task, prompt, answer in questions:
        padding = min(length for length in PADDED if length >= len(prompt + answer)) - len(prompt + answer)
        ids = torch.tensor([prompt + answer + [0] * padding], device=rank.run.device)
        hidden = rank.model.hidden(ids, torch.arange(ids.shape[1], device=ids.device)[None])[0, len(prompt) - 1:][:len(answer)]
        score = scores.setdefault(task, [0, 0])
        score[0] += bool((rank.model.logits(hidden).argmax(-1) == ids[0, len(prompt):][:len(answer)]).all())
        score[1] += 1
    return scores


def shares(scores_of_ranks):
    totals = {}
    for scores in scores_of_ranks:
        for task, (right, asked) in scores.items():
            total = totals.setdefault(task, [0, 0])
            total[0], total[1] = total[0] + right, total[1] + asked
    return {task: round(right / asked, 4) for task, (right, asked) in sorted(totals.items())}


def report(run, answer_loss, scores):
    run.points.append({"tokens": run.tokens, "seconds": round(run.seconds), "loss": round(answer_loss, 4), "accuracy": scores})
    shown = " ".join(f"{task} {100 * score:.0f}" for task, score in scores.items())
    print(f"{100 * run.progress:3.0f} %  {run.seconds:6.0f} s  step {run.step}  {run.tokens / 1e6:8.2f} M tokens  loss {answer_loss:.3f}  {shown}",
          flush=True)


def lead(run, questions, results):
    """What the first process does besides its share: it decides what is next, keeps the time and writes checkpoints."""
    rank = Rank(run, 0)
    rank.refresh()

    def everybody(what):
        batches = run.arguments.batches_per_step // (2 if run.progress < SMALL_STEPS else 1)
        run.control.copy_(torch.tensor([run.progress, run.step, batches, what], dtype=torch.float64))
        run.claimed.value = 0
        rank.follow(results, questions)

    def evaluate():
        everybody(EVALUATE)
        report(run, answer_loss, shares(results.values()))

    last_save = last_report = run.seconds
    answer_loss = 0.0
    while run.progress < 1.0:
        begin = time.monotonic()
        everybody(TRAIN)
        loss, answers, tokens, _ = run.sums.sum(0).tolist()
        answer_loss += (loss / max(1.0, answers) - answer_loss) * (0.05 if answer_loss else 1.0)
        run.step, run.tokens = run.step + 1, run.tokens + int(tokens)
        run.count_time(time.monotonic() - begin)
        if run.seconds - last_report >= run.arguments.eval_seconds:
            last_report = run.seconds
            evaluate()
        if run.seconds - last_save >= CHECKPOINT_SECONDS:
            last_save = run.seconds
            run.save()
    evaluate()
    run.save()
    everybody(END_OF_TRAINING)


def help_out(run, index, questions, results):
    rank = Rank(run, index)
    rank.refresh()
    while rank.follow(results, questions):
        pass


def train(run):
    context = multiprocessing.get_context("fork")
    questions = encode_questions(run.writer, test_questions(seed=1, per_task=16))
    with context.Manager() as manager:
        results = manager.dict()
        helpers = [context.Process(target=help_out, args=(run, i, questions, results), daemon=True) for i in range(1, run.ranks)]
        for helper in helpers:
            helper.start()
        lead(run, questions, results)
        for helper in helpers:
            helper.join()


def finish(run):
    """Exports the model and scores it on the committed questions."""
    out, arguments = run.arguments.out, run.arguments
    export(run.shared.views(run.shared.master), SHAPES[arguments.shape], out, run.writer.begin, run.writer.end)
    rank = Rank(run, 0)
    rank.refresh()
    scores = shares([accuracy(rank, encode_questions(run.writer, test_questions()))])
    summary = {"shape": arguments.shape, "parameters": num_parameters(run.model), "minutes": round(run.seconds / 60, 1), "steps": run.step,
               "tokens": run.tokens, "device": device_name(run), "accuracy": scores, "curve": run.points}
    (out / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    if run.points:
        (out / "learning_curve.svg").write_text(curve.svg(run.points))
    for task, score in scores.items():
        print(f"{task:12s} {100 * score:5.1f} %")


def device_name(run):
    return torch.cuda.get_device_name() if run.device.type == "cuda" else f"CPU, {run.ranks} processes"


def main():
    if any(os.environ.get(name) != value for name, value in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    torch.set_num_threads(1)
    run = Run(parse_arguments())
    run.load()
    print(f"{num_parameters(run.model):,} parameters on {device_name(run)}", flush=True)
    if not run.arguments.export_only:
        train(run)
    finish(run)


if __name__ == "__main__":
    main()
