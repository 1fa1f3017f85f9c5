"""Conversations out of the tasks: endless ones to train on, single held-out questions to test with.

    python3 generator.py            show a few conversations
    python3 generator.py --test     write the held-out questions as JSON lines to standard output
"""
import argparse
import json
import random

import stories
from words import Cast

BEGIN, END = "<|begin|>", "<|end|>"
SPECIAL_TOKENS = [BEGIN, END, "<|system|>", "<|user|>", "<|assistant|>"]
# How often each task occurs in training: much looking up at first, which the rest builds upon, later more of what is learnt slowest.
EARLY_TASKS = {stories.moving: 8, stories.recall: 7, stories.comparing: 2, stories.counting: 2, stories.ordering: 2, stories.sums: 3,
               stories.spelling: 2, stories.chatting: 1}
LATE_TASKS = EARLY_TASKS | {stories.moving: 20, stories.recall: 4}
TEST_TASKS = ["moving", "yesno", "recall", "recall_long", "counting", "comparing", "ordering", "sum2", "sum3", "backwards", "chat"]


def turn(role, text):
    return f"<|{role}|>{text}{END}"


def render(messages):
    """The chat template: what the model reads before it answers."""
    return BEGIN + "".join(turn(m["role"], m["content"]) for m in messages) + "<|assistant|>"


def _segments(rng, cast, size, assistant, long_tokens, tasks):
    if long_tokens:
        yield from stories.recall_long(rng, cast, size, num_tokens=long_tokens)
    while True:
        function = rng.choices(list(tasks), list(tasks.values()))[0]
        if function is stories.chatting:
            yield from function(rng, cast, size, assistant=assistant)
        else:
            yield from function(rng, cast, size)


def conversation(rng, size, long_tokens=0, tasks=LATE_TASKS):
    """An endless training conversation: (system message or None, iterator of Exchanges)."""
    cast = Cast(rng, test=False)
    system, assistant = stories.system_turn(rng, cast) if rng.random() < 0.25 else (None, "Echo")
    return system, _segments(rng, cast, size, assistant, long_tokens, tasks)


def _test_exchange(rng, task, index):
    """(messages before the question's answer, Exchange) of a single question of this task."""
    cast = Cast(rng, test=True)
    if task == "chat":
        system, name = stories.system_turn(rng, cast) if rng.random() < 0.5 else (None, "Echo")
        return system, next(stories.chatting(rng, cast, 1.0, questions=1, assistant=name))
    if task in ("sum2", "sum3"):
        return None, stories._sum(rng, cast, int(task[-1]))
    if task == "recall_long":
        return None, next(stories.recall_long(rng, cast, 1.0, questions=1, num_tokens=260 + 60 * (index % 27)))
    function = {"yesno": stories.moving, "backwards": stories.spelling}.get(task) or getattr(stories, task)
    while True:
        exchange = next(function(rng, cast, 1.0, questions=1))
        if exchange.task == task:
            return None, exchange


def test_questions(seed=2026, per_task=100):
    """Held-out questions: dicts with task, messages and answer."""
    rng = random.Random(seed)
    for task in TEST_TASKS:
        for index in range(per_task):
            system, exchange = _test_exchange(rng, task, index)
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": exchange.user})
            yield {"task": task, "messages": messages, "answer": exchange.answer}


def show(count, size):
    rng = random.Random(1)
    for _ in range(count):
        system, exchanges = conversation(rng, size)
        print(f"-- system: {system or '(none)'}")
        for _, exchange in zip(range(8), exchanges):
            print(f"[{exchange.task}] {exchange.user}\n  => {exchange.answer!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--test", action="store_true", help="the held-out questions as JSON lines")
    parser.add_argument("--per-task", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--size", type=float, default=1.0, help="difficulty of what is shown, 0 to 1")
    arguments = parser.parse_args()
    if not arguments.test:
        return show(3, arguments.size)
    for question in test_questions(arguments.seed, arguments.per_task):
        print(json.dumps(question))


if __name__ == "__main__":
    main()
