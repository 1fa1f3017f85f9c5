"""The demo model's stories: answers are right, training and testing share no combination, the committed questions are reproducible."""
import json
import pathlib
import random
import re
import sys
import unittest

DEMO = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "demo"
sys.dont_write_bytecode = True
sys.path.insert(0, str(DEMO))

import generator  # noqa: E402
import stories  # noqa: E402
import words  # noqa: E402


def training_exchanges(count, seed=3):
    rng = random.Random(seed)
    for _ in range(count):
        _, exchanges = generator.conversation(rng, 1.0)
        for _, exchange in zip(range(12), exchanges):
            yield exchange


class StoriesTest(unittest.TestCase):
    def test_committed_questions_are_the_generators(self):
        lines = (DEMO / "model" / "questions.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line) for line in lines], list(generator.test_questions()))

    def test_every_task_has_its_questions(self):
        counts = {}
        for question in generator.test_questions(per_task=3):
            counts[question["task"]] = counts.get(question["task"], 0) + 1
        self.assertEqual(counts, {task: 3 for task in generator.TEST_TASKS})

    def test_training_never_says_a_held_out_name_or_thing(self):
        names = {f"{first} {last}" for first, lasts in words.TEST_NAMES.items() for last in lasts}
        things = {f"{adjective} {noun}" for noun, adjectives in words.TEST_THINGS.items() for adjective in adjectives}
        for exchange in training_exchanges(300):
            text = f"{exchange.user} {exchange.answer}"
            pairs = set(re.findall(r"(?=\b(\w+ \w+)\b)", text))
            self.assertFalse(pairs & names, text)
            self.assertFalse(pairs & things, text)

    def test_sums_are_right_and_split(self):
        for test in (False, True):
            cast = words.Cast(random.Random(5), test)
            for _ in range(200):
                a, b = map(int, re.findall(r"\d+", stories._sum(cast.rng, cast, 2).user))
                self.assertEqual(words.is_held_out(a, b), test)
                self.assertEqual(stories.worked_sum(a, b).splitlines()[-1], str(a + b))
        self.assertEqual(stories.worked_sum(47, 85), "7+5=12\n4+8+1=13\n132")

    def test_stories_can_be_followed_by_reading_them(self):
        """Replays who is where and who has what from the sentences alone."""
        checked = 0
        for exchange in training_exchanges(400):
            if exchange.task == "moving" and exchange.user.startswith("Story: "):
                checked += self.follow(exchange)
        self.assertGreater(checked, 20)

    def follow(self, exchange):
        place, holder = {}, {}
        *sentences, question = re.split(r"(?<=[.?]) ", exchange.user.removeprefix("Story: "))
        for sentence in sentences:
            words_of = sentence.rstrip(".").replace("The ", "the ")
            if match := re.fullmatch(r"(.+?) (?:is in|went to|walked to|ran to|moved to) the (\w+)", words_of):
                place[match[1]] = match[2]
            elif match := re.fullmatch(r"(.+?) (?:took|picked up|grabbed) (the .+)", words_of):
                self.assertEqual(place[match[1]], place.pop(match[2]))
                holder[match[2]] = match[1]
            elif match := re.fullmatch(r"(.+?) (?:gave|handed|passed) (the .+) to (.+)", words_of):
                self.assertEqual((holder[match[2]], place[match[1]]), (match[1], place[match[3]]))
                holder[match[2]] = match[3]
            elif match := re.fullmatch(r"(.+?) (?:left|put|dropped) (the .+) in the (\w+)", words_of):
                self.assertEqual((holder.pop(match[2]), match[3]), (match[1], place[match[1]]))
                place[match[2]] = match[3]
            else:
                self.fail(sentence)
        if match := re.fullmatch(r"Where is (?!the )(.+)\?", question):
            self.assertEqual(exchange.answer, f"{match[1]} is in the {place[match[1]]}.")
        elif match := re.fullmatch(r"Where is (the .+)\?", question):
            by = f"with {holder[match[1]]} " if match[1] in holder else ""
            self.assertEqual(exchange.answer, f"T{match[1][1:]} is {by}in the {place[holder.get(match[1], match[1])]}.")
        elif match := re.fullmatch(r"Who has (the .+)\?", question):
            self.assertEqual(exchange.answer, f"T{match[1][1:]} is with {holder.get(match[1], 'nobody')}.")
        return 1


if __name__ == "__main__":
    unittest.main()
