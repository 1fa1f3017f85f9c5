"""The words of the demo model's world, and which combinations of them training never sees.

A full name is a first and a last name and a thing an adjective and a noun ("red ball"), each of these one token. What is held out are
combinations: every word is trained, a held-out name or thing never occurs. Half of the conversations use first names only.
"""
import random
import zlib

FIRST_NAMES = (
    "Alice Anna Ben Bob Carol Clara Daniel David Emma Eric Eva Felix Frank George Grace Helen Henry Ida Jack James Jane John Julia Kate "
    "Laura Leo Lily Lucy Maria Mark Mary Max Mia Nina Noah Oliver Oscar Paul Peter Rosa Ruth Sam Sarah Sophie Tim Tom Victor Walter "
    "Wendy Zoe").split()
LAST_NAMES = (
    "Miller Baker Smith Fisher Cook Taylor Carter Walker Hunter Potter Mason Turner Parker Cooper Weaver King Stone Wood Hill Field "
    "Rivers Snow Frost Winter Day Bell Young Brown Green White Gray Cole Reed Ford Lane Price").split()
ADJECTIVES = "red blue green yellow black white brown silver golden small big round wooden broken".split()
NOUNS = (
    "ball book cup key lamp coin box hat ring bell map rope knife spoon plate bottle basket candle clock mirror pen letter shoe scarf "
    "glove stone shell drum flute kite apple pear lemon cake brush comb chain ladder wheel flag").split()
PLACES = (
    "kitchen garden hall attic cellar office library market station school harbour forest bakery museum park stable tower church "
    "bedroom workshop").split()
ANIMALS = (
    "tiger lion horse eagle snake rabbit whale shark camel donkey monkey goose swan crow hawk frog toad beetle spider wolf bear fox "
    "deer goat sheep duck mouse otter beaver badger parrot turtle zebra giraffe panda falcon pigeon salmon lobster squirrel").split()
# Every HOLD_OUT-th combination is kept for testing.
HOLD_OUT = 8


def is_held_out(*parts):
    """Whether training never sees this combination of words or numbers."""
    return zlib.crc32(" ".join(map(str, parts)).encode()) % HOLD_OUT == 0


def _split(first, last):
    pairs = [(a, b) for a in first for b in last]
    return [p for p in pairs if not is_held_out(*p)], [p for p in pairs if is_held_out(*p)]


def _by_first(pairs):
    table = {}
    for first, last in pairs:
        table.setdefault(first, []).append(last)
    return table


TRAIN_NAMES, TEST_NAMES = map(_by_first, _split(FIRST_NAMES, LAST_NAMES))
TRAIN_THINGS, TEST_THINGS = map(_by_first, _split(NOUNS, ADJECTIVES))


class Cast:
    """Hands out the names, things and words of one conversation; none returns before all have been used.

    Names differ in the first name and things in their noun, so that each has a token of its own.
    """

    def __init__(self, rng: random.Random, test: bool):
        self.rng = rng
        self.test = test
        self.full_names = test or rng.random() < 0.5
        self._decks = {}

    def _deal(self, deck, cards, count):
        left = self._decks.setdefault(deck, [])
        if len(left) < count:
            left[:] = self.rng.sample(cards, len(cards))
        return [left.pop() for _ in range(count)]

    def names(self, count):
        last_names = TEST_NAMES if self.test else TRAIN_NAMES
        firsts = self._deal("names", list(last_names), count)
        return [f"{first} {self.rng.choice(last_names[first])}" if self.full_names else first for first in firsts]

    def things(self, count):
        adjectives = TEST_THINGS if self.test else TRAIN_THINGS
        return [f"{self.rng.choice(adjectives[n])} {n}" for n in self._deal("things", list(adjectives), count)]

    def places(self, count):
        return self.rng.sample(PLACES, count)

    def animals(self, count):
        return self._deal("animals", ANIMALS, count)

    def pair(self, low, high):
        """Two numbers in [low, high] whose ordered pair is of this split."""
        while True:
            a, b = self.rng.randint(low, high), self.rng.randint(low, high)
            if is_held_out(a, b) == self.test:
                return a, b
