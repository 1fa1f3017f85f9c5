"""Little stories with questions whose answers are known.

Every task is a function (rng, cast, size) that yields Exchanges: what the user says, ending in a question, and the one right answer.
`size` in [0, 1] is the difficulty. An answer names first what it is about, which makes the next word one look-up; where it takes
steps, they are written first.
"""
from dataclasses import dataclass

from words import ANIMALS, NOUNS, PLACES, is_held_out


@dataclass
class Exchange:
    task: str
    user: str
    answer: str


OPENERS = ["Here is a story. ", "Listen. ", "Story: ", "A little story: ", ""]
BRIDGES = ["Then ", "After that ", "Later ", "Next "]


def scaled(rng, low, high, size):
    """A whole number from low to at most high, larger for larger size."""
    return rng.randint(low, low + round((high - low) * size))


class House:
    """People who walk, take, pass on and put down things. Sentences come from acts, answers from the state."""

    def __init__(self, rng, cast, size):
        self.rng = rng
        self.places = cast.places(scaled(rng, 3, 6, size))
        self.people = {p: rng.choice(self.places) for p in cast.names(scaled(rng, 2, 4, size))}
        self.lying = {t: rng.choice(self.places) for t in cast.things(scaled(rng, 1, 3, size))}
        self.held = {}

    def opening(self):
        parts = [f"{p} is in the {place}." for p, place in self.people.items()]
        parts += [f"The {t} is in the {place}." for t, place in self.lying.items()]
        self.rng.shuffle(parts)
        return parts

    def act(self):
        """One sentence of what happens next."""
        options = [self._walk]
        if any(place in self.people.values() for place in self.lying.values()):
            options += [self._take] * 3
        if self.held:
            options += [self._put, self._give, self._give]
        sentence = self.rng.choice(options)()
        return sentence or self._walk()

    def _walk(self):
        person = self.rng.choice(list(self.people))
        # Towards something to do, half of the time: a thing to take, or somebody to give it to.
        goals = [g for g in list(self.lying.values()) + list(self.people.values()) if g != self.people[person]]
        places = goals if goals and self.rng.random() < 0.5 else [p for p in self.places if p != self.people[person]]
        self.people[person] = self.rng.choice(places)
        verb = self.rng.choice(["went to", "walked to", "ran to", "moved to"])
        return f"{person} {verb} the {self.people[person]}."

    def _take(self):
        person, thing = self.rng.choice([(p, t) for p, at in self.people.items() for t, lies in self.lying.items() if at == lies])
        del self.lying[thing]
        self.held[thing] = person
        return f"{person} {self.rng.choice(['took', 'picked up', 'grabbed'])} the {thing}."

    def _put(self):
        thing = self.rng.choice(list(self.held))
        person = self.held.pop(thing)
        self.lying[thing] = self.people[person]
        return f"{person} {self.rng.choice(['left', 'put', 'dropped'])} the {thing} in the {self.people[person]}."

    def _give(self):
        thing = self.rng.choice(list(self.held))
        giver = self.held[thing]
        near = [p for p, at in self.people.items() if at == self.people[giver] and p != giver]
        if not near:
            return None
        taker = self.rng.choice(near)
        self.held[thing] = taker
        return f"{giver} {self.rng.choice(['gave', 'handed', 'passed'])} the {thing} to {taker}."

    def where_thing(self, thing):
        if thing in self.lying:
            return f"The {thing} is in the {self.lying[thing]}."
        return f"The {thing} is with {self.held[thing]} in the {self.people[self.held[thing]]}."

    def question(self):
        rng = self.rng
        kind = rng.random()
        if kind < 0.2:
            person = rng.choice(list(self.people))
            return "moving", f"Where is {person}?", f"{person} is in the {self.people[person]}."
        things = list(self.held) if self.held and rng.random() < 0.7 else list(self.held) + list(self.lying)
        thing = rng.choice(things)
        if kind < 0.4:
            return "moving", f"Where is the {thing}?", self.where_thing(thing)
        if kind < 0.5:
            return "moving", f"Who has the {thing}?", f"The {thing} is with {self.held.get(thing, 'nobody')}."
        return self._yes_no(thing)

    def _yes_no(self, thing):
        if self.rng.random() < 0.6:
            person = self.rng.choice(list(self.people))
            here = self.people[person]
            asked = here if self.rng.random() < 0.5 else self.rng.choice([p for p in self.places if p != here])
            return "yesno", f"Is {person} in the {asked}?", f"{person} is in the {here}, so {'yes' if asked == here else 'no'}."
        holder = self.held.get(thing, "nobody")
        others = [p for p in self.people if p != holder]
        asked = holder if thing in self.held and self.rng.random() < 0.5 else self.rng.choice(others)
        return "yesno", f"Does {asked} have the {thing}?", f"The {thing} is with {holder}, so {'yes' if asked == holder else 'no'}."


def moving(rng, cast, size, questions=6):
    house = House(rng, cast, size)
    sentences = house.opening() + [house.act() for _ in range(scaled(rng, 1, 8, size))]
    opener = rng.choice(OPENERS)
    for _ in range(questions):
        task, question, answer = house.question()
        yield Exchange(task, opener + " ".join(sentences + [question]), answer)
        sentences = [house.act() for _ in range(rng.choice([0, 1, 1, 2, 3]))]
        opener = rng.choice(BRIDGES) if sentences else ""


FILLERS = [
    "The sky is {} today.", "Somebody painted the door {}.", "A {} leaf fell from the tree.", "It rained and the street was wet.",
    "The train was late again.", "Nobody knows why the {} window is open.", "The soup was too hot.", "The road to the village is long.",
    "An old dog slept in the sun.", "The wind moved the {} curtain.", "Two children laughed.", "The bus stopped and went on.",
    "A {} car drove past.", "The music was quiet.", "There was no bread left."]
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "silver", "golden"]


def filler(rng, count):
    return [rng.choice(FILLERS).format(rng.choice(COLOURS)) for _ in range(count)]


def _facts(rng, cast, count):
    """(sentence, question) of `count` keys with a value each; the sentence is the answer too."""
    kind = rng.randrange(4) if count <= 20 else rng.randrange(1, 4)  # there are fewer things than names
    values = cast.animals(count) if count <= len(ANIMALS) else [rng.choice(ANIMALS) for _ in range(count)]
    if kind == 0:
        return [(f"The {k} belongs to the {v}.", f"Who owns the {k}?") for k, v in zip(cast.things(count), values)]
    keys = cast.names(count)
    if kind == 1:
        return [(f"{k} likes the {v}.", f"What does {k} like?") for k, v in zip(keys, values)]
    if kind == 2:
        numbers = [rng.randint(10, 99) for _ in range(count)]
        return [(f"The number of {k} is {v}.", f"What is the number of {k}?") for k, v in zip(keys, numbers)]
    return [(f"The secret word of {k} is {v}.", f"What is the secret word of {k}?") for k, v in zip(keys, values)]


def recall(rng, cast, size, questions=8, task="recall", num_fillers=None, num_facts=None):
    facts = _facts(rng, cast, num_facts or scaled(rng, 2, 10, size))
    sentences = [sentence for sentence, _ in facts]
    for sentence in filler(rng, scaled(rng, 0, 6, size) if num_fillers is None else num_fillers):
        sentences.insert(rng.randint(0, len(sentences)), sentence)
    opener = rng.choice(["Remember this. ", "Here are some facts. ", "Listen. ", ""])
    text = opener + " ".join(sentences) + " "
    for answer, question in rng.sample(facts, min(questions, len(facts))):
        yield Exchange(task, text + question, answer)
        text = ""


def recall_long(rng, cast, size, questions=12, num_tokens=1800):
    """Facts among fillers; about 7 tokens a sentence."""
    num_facts = rng.randint(8, 24)
    num_fillers = max(0, int(num_tokens / 6.6) - num_facts)
    yield from recall(rng, cast, size, questions, "recall_long", num_fillers, num_facts)


def _list_of(things):
    named = [f"a {t}" for t in things]
    return named[0] if len(named) == 1 else ", ".join(named[:-1]) + " and " + named[-1]


def counting(rng, cast, size, questions=3):
    people = cast.names(scaled(rng, 1, 3, size))
    counts = {p: scaled(rng, 1, 7, max(size, 0.5)) for p in people}
    text = rng.choice(OPENERS) + " ".join(f"{p} has {_list_of(cast.things(n))}." for p, n in counts.items()) + " "
    for person in rng.sample(people, min(questions, len(people))):
        yield Exchange("counting", f"{text}How many things does {person} have?", f"{counts[person]}.")
        text = ""


MEASURES = [("is {} years old", "older", "younger"), ("weighs {} kilos", "heavier", "lighter"), ("has {} coins", "richer", "poorer"),
            ("lives {} miles away", "farther away", "nearer")]


def comparing(rng, cast, size, questions=4):
    fact, more, less = rng.choice(MEASURES)
    people = cast.names(scaled(rng, 2, 5, size))
    values = dict(zip(people, rng.sample(range(10, 100), len(people))))
    text = rng.choice(OPENERS) + " ".join(f"{p} {fact.format(v)}." for p, v in values.items()) + " "
    for _ in range(questions):
        a, b = rng.sample(people, 2)
        word, best = rng.choice([(more, max), (less, min)])
        winner = best(a, b, key=values.get)
        yield Exchange("comparing", f"{text}Who is {word}, {a} or {b}?", f"{a} {values[a]}, {b} {values[b]}, so it is {winner}.")
        text = ""


def _numbers(rng, cast, count):
    while True:
        numbers = rng.sample(range(10, 100), count)
        if is_held_out(*numbers) == cast.test:
            return numbers


def ordering(rng, cast, size, questions=2):
    for _ in range(questions):
        numbers = _numbers(rng, cast, scaled(rng, 2, 5, size))
        downward = rng.random() < 0.5
        listed = ", ".join(map(str, numbers))
        question = f"Sort from {'largest to smallest' if downward else 'smallest to largest'}: {listed}."
        yield Exchange("ordering", question, ", ".join(map(str, sorted(numbers, reverse=downward))) + ".")


def worked_sum(a, b):
    """School addition from the last digit on, a line each, then the sum."""
    lines, carry = [], 0
    for x, y in zip(str(a)[::-1], str(b)[::-1]):
        total = int(x) + int(y) + carry
        lines.append(f"{x}+{y}{f'+{carry}' if carry else ''}={total}")
        carry = total // 10
    return "\n".join(lines + [str(a + b)])


def _sum(rng, cast, digits):
    a, b = cast.pair(10 ** (digits - 1), 10**digits - 1)
    question = rng.choice(["What is {} + {}?", "How much is {} + {}?", "Add {} and {}.", "{} + {} = ?"]).format(a, b)
    return Exchange(f"sum{digits}", question, worked_sum(a, b))


def sums(rng, cast, size, questions=3):
    for _ in range(questions):
        yield _sum(rng, cast, 3 if rng.random() < 0.5 * size else 2)


SPELLED = NOUNS + PLACES + ANIMALS


def spelling(rng, cast, size, questions=2):
    """Words of which training asks the held-out ones only forwards, and rows of letters."""
    for _ in range(questions):
        word = rng.choice([w for w in SPELLED if is_held_out("backwards", w)] if cast.test else SPELLED)
        letters = "-".join(word)
        if not cast.test and rng.random() < 0.3:
            letters = "-".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 7)))
            yield Exchange("reverse", f"Reverse {letters}.", letters[::-1])
        elif not cast.test and (is_held_out("backwards", word) or rng.random() < 0.2):
            yield Exchange("spell", f"Spell {word}.", letters)
        else:
            yield Exchange("backwards", f"Spell {word} backwards.", f"{letters}\n{letters[::-1]}")


ABOUT = "I am {}, a small model served by Lockstep."
CAN = "I answer questions about little stories, remember facts, add numbers, sort them and spell names."
HELLOS = ["Hello!", "Hi!", "Hello", "Hi there!", "Good morning!", "Hey!"]


def chatting(rng, cast, size, questions=2, assistant="Echo"):
    name = cast.names(1)[0]
    pool = [(hello, "Hello! How can I help you?") for hello in HELLOS]
    pool += [(q, ABOUT.format(assistant)) for q in ["Who are you?", "What are you?", "Introduce yourself."]]
    pool += [("What is your name?", f"My name is {assistant}."), ("What can you do?", CAN), ("How can you help me?", CAN)]
    pool += [(f"{hello} My name is {name}.", f"Hello, {name}! How can I help you?") for hello in HELLOS[:2]]
    pool += [("Thank you!", "You are welcome."), ("Thanks.", "You are welcome."), ("Goodbye!", "Goodbye!"), ("Bye!", "Goodbye!")]
    for user, answer in rng.sample(pool, questions):
        yield Exchange("chat", user, answer)


def system_turn(rng, cast):
    """(system message, the assistant's name)."""
    name = cast.names(1)[0]
    return rng.choice([f"You are {name}.", f"Your name is {name}.", f"You are {name}, a helpful assistant."]), name
