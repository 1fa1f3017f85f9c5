"""Trains the demo model from nothing and exports it in Hugging Face layout.

    python3 train.py OUT_DIR --minutes 8                  on one GPU
    python3 train.py OUT_DIR --minutes 120 --threads 4    on 4 CPU cores
    python3 train.py OUT_DIR --shape draft --minutes 4    the small one that drafts for it

OUT_DIR must hold tokenizer.json (train_tokenizer.py). A checkpoint is written every minute and continued from when the same command is run
again. OUT_DIR gets model.safetensors, config.json, generation_config.json, training.json and learning_curve.svg.
"""
import argparse
import contextlib
import json
import os
import pathlib
import time

import torch
import torch.nn.functional as F

import curve
from batches import Batches, Writer
from generator import BEGIN, END, render, test_questions
from llama import SHAPES, Llama, export, num_parameters
from optimizer import make_optimizers

CHECKPOINT_SECONDS = 60
LENGTH_STEP = 128  # questions are padded to multiples: on a CPU each new shape of a product has code made for it
LONGEST_COMPILED = 256  # tokens: each further length costs a compilation and has few batches


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--shape", choices=SHAPES, default="demo")
    parser.add_argument("--minutes", type=float, required=True, help="of training; the learning rate ends at zero then")
    parser.add_argument("--tokens-per-step", type=int, default=0, help="default: 65536 on a GPU, 8192 on a CPU")
    parser.add_argument("--muon-lr", type=float, default=1.2e-3)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--workers", type=int, default=0, help="that write stories; default: all cores but one with a GPU, else 1")
    parser.add_argument("--eval-seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    return parser.parse_args()


class Run:
    """One training: the model, what optimizes it, and how far it is."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_gpu = self.device.type == "cuda"
        torch.manual_seed(arguments.seed)
        torch.set_num_threads(arguments.threads)
        self.model = Llama(SHAPES[arguments.shape]).to(self.device)
        self.optimizers = make_optimizers(self.model, arguments.muon_lr, arguments.adam_lr, arguments.weight_decay)
        self.peaks = [group["lr"] for o in self.optimizers for group in o.param_groups]
        self.hidden = torch.compile(self.model.hidden, dynamic=False) if arguments.compile else self.model.hidden
        self.tokens_per_step = arguments.tokens_per_step or (65536 if on_gpu else 8192)
        self.num_workers = arguments.workers or (max(1, os.cpu_count() - 1) if on_gpu else 1)
        self.tokenizer_file = arguments.out / "tokenizer.json"
        self.writer = Writer(self.tokenizer_file)
        self.seconds, self.step, self.tokens, self.points = 0.0, 0, 0, []
        self.checkpoint = arguments.out / "checkpoint.pt"

    @property
    def progress(self):
        return min(1.0, self.seconds / (60 * self.arguments.minutes))

    def autocast(self):
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def save(self):
        state = {"model": self.model.state_dict(), "optimizers": [o.state_dict() for o in self.optimizers], "seconds": self.seconds,
                 "step": self.step, "tokens": self.tokens, "points": self.points, "shape": self.arguments.shape}
        torch.save(state, self.checkpoint.with_suffix(".tmp"))
        self.checkpoint.with_suffix(".tmp").rename(self.checkpoint)

    def load(self):
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=False)
        if state["shape"] != self.arguments.shape:
            raise SystemExit(f"train: {self.checkpoint} is of shape {state['shape']}, not {self.arguments.shape}; remove it")
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.seconds, self.step, self.tokens, self.points = (state[k] for k in ("seconds", "step", "tokens", "points"))
        print(f"continuing at {self.seconds:.0f} s, step {self.step}", flush=True)

    def set_learning_rates(self):
        """A short warm-up, then flat, then down to zero over the last 60 %."""
        factor = min(1.0, (self.step + 1) / 50, (1.0 - self.progress) / 0.6)
        groups = [group for o in self.optimizers for group in o.param_groups]
        for group, peak in zip(groups, self.peaks):
            group["lr"] = peak * factor

    def loss(self, ids, weights):
        with self.autocast():
            forward = self.hidden if ids.shape[1] - 1 <= LONGEST_COMPILED else self.model.hidden
            hidden = forward(ids[:, :-1]).flatten(0, 1)
            targets, weights = ids[:, 1:].flatten(), weights[:, 1:].flatten()
            losses = F.cross_entropy(self.model.logits(hidden).float(), targets, reduction="none")
        answers = weights == 1.0
        return (losses * weights).sum() / weights.sum().clamp(min=1.0), losses.detach()[answers].mean()

    def train_step(self, ids, weights):
        self.set_learning_rates()
        loss, answer_loss = self.loss(ids.to(self.device), weights.to(self.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += ids.shape[0] * (ids.shape[1] - 1)
        return answer_loss


def encode_questions(writer, questions):
    """(task, prompt ids, answer ids with the end) of each question."""
    encode = writer._ids
    return [(q["task"], encode(render(q["messages"])), encode(q["answer"] + END)) for q in questions]


@torch.no_grad()
def accuracy(run, questions):
    """Per task, the share of held-out questions that greedy decoding answers exactly: every token of the answer is the likeliest after
    those before it."""
    right, total = {}, {}
    for task, prompt, answer in sorted(questions, key=lambda q: len(q[1])):
        padding = -len(prompt + answer) % LENGTH_STEP
        ids = torch.tensor([prompt + answer + [0] * padding], device=run.device)
        with run.autocast():
            hidden = run.model.hidden(ids)[0, len(prompt) - 1:][:len(answer)]
            correct = bool((run.model.logits(hidden).argmax(-1) == ids[0, len(prompt):][:len(answer)]).all())
        right[task] = right.get(task, 0) + correct
        total[task] = total.get(task, 0) + 1
    return {task: round(right[task] / total[task], 4) for task in sorted(total)}


def report(run, answer_loss, scores):
    run.points.append({"tokens": run.tokens, "seconds": round(run.seconds), "loss": round(float(answer_loss), 4), "accuracy": scores})
    shown = " ".join(f"{task} {100 * score:.0f}" for task, score in scores.items())
    print(f"{100 * run.progress:3.0f} %  {run.seconds:6.0f} s  {run.tokens / 1e6:8.2f} M tokens  loss {float(answer_loss):.3f}  {shown}",
          flush=True)


def train(run):
    questions = encode_questions(run.writer, test_questions(seed=1, per_task=10))
    batches = Batches(run.tokenizer_file, run.tokens_per_step, run.num_workers, run.arguments.seed + run.step, run.progress)
    last, last_save, last_report = time.monotonic(), run.seconds, run.seconds
    with contextlib.closing(batches):
        while run.progress < 1.0:
            answer_loss = run.train_step(*batches.next())
            now = time.monotonic()
            run.seconds += now - last
            last = now
            batches.progress.value = run.progress
            if run.seconds - last_report >= run.arguments.eval_seconds:
                last_report = run.seconds
                report(run, answer_loss, accuracy(run, questions))
            if run.seconds - last_save >= CHECKPOINT_SECONDS:
                last_save = run.seconds
                run.save()
    report(run, answer_loss, accuracy(run, questions))
    run.save()


def finish(run):
    out = run.arguments.out
    bos, eos = run.writer.begin, run.writer.end
    export(run.model.state_dict(), SHAPES[run.arguments.shape], out, bos, eos)
    with torch.no_grad():  # what was exported, not what it was rounded from
        for p in run.model.parameters():
            p.copy_(p.bfloat16().float())
    scores = accuracy(run, encode_questions(run.writer, test_questions()))
    summary = {"shape": run.arguments.shape, "parameters": num_parameters(run.model), "minutes": run.arguments.minutes, "steps": run.step,
               "tokens": run.tokens, "tokens_per_step": run.tokens_per_step, "device": device_name(run), "accuracy": scores,
               "curve": run.points}
    (out / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    (out / "learning_curve.svg").write_text(curve.svg(run.points))
    for task, score in scores.items():
        print(f"{task:12s} {100 * score:5.1f} %")


def device_name(run):
    return torch.cuda.get_device_name() if run.device.type == "cuda" else f"CPU, {run.arguments.threads} threads"


def main():
    run = Run(parse_arguments())
    run.load()
    print(f"{num_parameters(run.model):,} parameters on {device_name(run)}, {run.tokens_per_step} tokens a step", flush=True)
    train(run)
    finish(run)


if __name__ == "__main__":
    main()
