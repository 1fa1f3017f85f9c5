"""Random JSON Schemas, each with a function that makes values that are valid against it.

Values have properties in the order in which a schema's grammar writes them, and no others but where the schema asks
for some. A maker raises NoValue where it finds none.
"""
import random
import string

FORMATS = {
    "date": lambda r: f"{r.randint(1, 9999):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}",
    "time": lambda r: f"{r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02}{r.choice(['Z', '+01:30', '.25Z'])}",
    "date-time": lambda r: f"{FORMATS['date'](r)}T{FORMATS['time'](r)}",
    "uuid": lambda r: "-".join("".join(r.choices("0123456789abcdef", k=k)) for k in (8, 4, 4, 4, 12)),
    "email": lambda r: f"{word(r)}.{word(r)}@{word(r)}.org",
    "ipv4": lambda r: ".".join(str(r.randint(0, 255)) for _ in range(4)),
    "uri": lambda r: f"https://{word(r)}.org/",
}
PATTERNS = {  # with makers of what they match
    "^[a-z]+$": lambda r, low, high: fit(r, low, high, lambda: word(r)),
    "[0-9]": lambda r, low, high: fit(r, low, high, lambda: text(r, 4) + "7" + text(r, 4)),
    "^(ab|c)*-?$": lambda r, low, high: fit(r, low, high, lambda: "".join(r.choices(["ab", "c"], k=r.randint(0, 4))) + r.choice(["-", ""])),
    "^[A-Z]{2}\\d{3}$": lambda r, low, high: fit(r, low, high, lambda: "".join(r.choices(string.ascii_uppercase, k=2)) + f"{r.randint(0, 999):03}"),
    "^[^x\"]*$": lambda r, low, high: fit(r, low, high, lambda: text(r, 8).replace("x", "").replace('"', "")),
    "x$|^\\\\": lambda r, low, high: fit(r, low, high, lambda: r.choice([text(r, 5) + "x", "\\" + text(r, 3)])),
}
CHARACTERS = "abcxyz019 _-/\"\\\n\t\x01\x7fé€字😀"
NAMES = ["a", "b", "id", "name", "na", "names", "ключ", "with \"quotes\"", "a/b", "~", "", "tab\t", "type", "$ref", "properties"]


def word(r):
    return "".join(r.choices(string.ascii_lowercase, k=r.randint(1, 8)))


def text(r, most):
    return "".join(r.choices(CHARACTERS, k=r.randint(0, most)))


class NoValue(Exception):
    """A maker found none: another one may."""


def fit(r, low, high, make):
    for _ in range(50):
        made = make()
        if low <= len(made) <= high:
            return made
    raise NoValue


def any_value(r, depth=0):
    kinds = [lambda: None, lambda: r.random() < 0.5, lambda: r.randint(-10**6, 10**6), lambda: r.uniform(-1, 1) * 10.0**r.randint(-9, 300),
             lambda: text(r, 8)]
    if depth < 3:
        kinds += [lambda: [any_value(r, depth + 1) for _ in range(r.randint(0, 3))],
                  lambda: {text(r, 5): any_value(r, depth + 1) for _ in range(r.randint(0, 3))}]
    return r.choice(kinds)()


def choice_of(r, values):
    if not values:
        raise NoValue
    return r.choice(values)


class Schemas:
    """draft: 4, 7 or 2020. make() returns (schema, maker)."""

    def __init__(self, rng, draft):
        self.r = rng
        self.draft = draft
        self.definitions = {}  # name: (schema, maker), while one is made None
        self.where = "$defs" if draft == 2020 else "definitions"

    def document(self):
        schema, maker = self.make(0)
        if isinstance(schema, dict) and self.definitions:
            schema = dict(schema)
            schema[self.where] = {name: made[0] for name, made in self.definitions.items()}
        elif self.definitions:
            return self.document()
        return schema, maker

    def make(self, depth):
        simple = [self.null, self.boolean, self.integer, self.number, self.string, self.string, self.enum, self.const, self.anything,
                  self.types]
        nested = [self.array, self.array, self.object, self.object, self.object, self.object, self.any_of, self.any_of_siblings, self.one_of,
                  self.one_of_objects, self.all_of, self.reference, self.reference, self.tuple]
        made = self.r.choice(simple if depth >= 4 else simple + 2 * nested if depth else nested)(depth + 1)
        if isinstance(made[0], dict) and self.r.random() < 0.1:
            made[0].setdefault("description", "type, enum and such")
            made[0].setdefault("title", "A")
        return made

    def null(self, _):
        return {"type": "null"}, lambda: None

    def boolean(self, _):
        return {"type": "boolean"}, lambda: self.r.random() < 0.5

    def anything(self, _):
        return self.r.choice([{}, True] if self.draft > 4 else [{}]), lambda: any_value(self.r)

    def types(self, _):
        return {"type": ["string", "null", "integer"]}, lambda: self.r.choice([None, text(self.r, 5), self.r.randint(-9, 9)])

    def bounds(self, schema, low, high, gap):
        """Adds bounds; returns the least and greatest value, gap apart from an excluded bound."""
        first, last = low, high
        if self.r.random() < 0.7:
            exclusive = self.r.random() < 0.4
            first = low + (gap if exclusive else 0)
            self.bound(schema, "minimum", "exclusiveMinimum", low, exclusive)
        if self.r.random() < 0.7:
            exclusive = self.r.random() < 0.4
            last = high - (gap if exclusive else 0)
            self.bound(schema, "maximum", "exclusiveMaximum", high, exclusive)
        return first, last

    def bound(self, schema, name, exclusive_name, value, exclusive):
        if not exclusive:
            schema[name] = value
        elif self.draft == 4:
            schema[name], schema[exclusive_name] = value, True
        else:
            schema[exclusive_name] = value

    def integer(self, _):
        size = 10**self.r.randint(0, 17)
        low, high = sorted(self.r.randint(-size, size) for _ in range(2))
        if self.r.random() < 0.3:
            low = max(low, 0)
            high = max(low, high)
        schema = {"type": "integer"}
        first, last = self.bounds(schema, low, max(high, low + 2), 1)
        if self.r.random() < 0.1:
            schema["multipleOf"] = 1
        return schema, lambda: self.r.randint(min(first, last), last)

    def number(self, _):
        size = 10.0**self.r.randint(-1, 6)
        digits = self.r.randint(0, 3)
        low, high = sorted(round(self.r.uniform(-size, size), digits) for _ in range(2))
        if self.r.random() < 0.3:
            low, high = sorted(self.r.choice([0, 1, -1, 0.5, 100]) for _ in range(2))
        schema = {"type": "number"}
        low, high = (low, high) if high > low else (low, round(low + 1, digits))
        first, last = (round(value, 5) for value in self.bounds(schema, low, high, min(10.0**-digits, high - low) / 4))
        if len(schema) == 1:
            return schema, lambda: self.r.choice([self.r.uniform(-size, size), 1e300, 5e-300, 1e22, self.r.randint(-10**17, 10**17)])
        return schema, lambda: self.r.choice([first, last, round(self.r.uniform(first, last), 4)])

    def string(self, _):
        low, high = 0, 12
        schema = {"type": "string"}
        if self.r.random() < 0.3:
            low = schema["minLength"] = self.r.randint(0, 5)
        if self.r.random() < 0.3:
            high = schema["maxLength"] = low + self.r.randint(0, 8)
        kind = self.r.random()
        if kind < 0.3:
            pattern = self.r.choice(list(PATTERNS))
            schema["pattern"] = pattern
            return schema, lambda: PATTERNS[pattern](self.r, low, high)
        if kind < 0.5:
            form = self.r.choice(list(FORMATS))
            return {"type": "string", "format": form}, lambda: FORMATS[form](self.r)
        return schema, lambda: fit(self.r, low, high, lambda: text(self.r, 12))

    def values(self):
        pool = [None, True, False, 0, 1, 2, -7, 1.5, 1e100, "", "a", "ab", "b", "é\n\"", [], [1, [2, {}]], {}, {"a": 1, "b": [None]}]
        return self.r.sample(pool, self.r.randint(1, 6))

    def enum(self, _):
        values = self.values()
        if self.r.random() < 0.5:
            return {"enum": values}, lambda: self.r.choice(values)
        kept = [value for value in values if not isinstance(value, (bool, dict))]
        return {"type": ["string", "null", "number", "array"], "enum": values}, lambda: choice_of(self.r, kept)

    def const(self, _):
        value = self.values()[0]
        return ({"const": value} if self.draft > 4 else {"enum": [value]}), lambda: value

    def array(self, depth):
        item, maker = self.make(depth)
        low, high = 0, 3
        schema = {"type": "array", "items": item}
        if self.r.random() < 0.3:
            low = schema["minItems"] = self.r.randint(0, 2)
            high = low + 2
        if self.r.random() < 0.3:
            high = schema["maxItems"] = low + self.r.randint(0, 3)
        return schema, lambda: [maker() for _ in range(self.r.randint(low, high))]

    def tuple(self, depth):
        items = [self.make(depth) for _ in range(self.r.randint(1, 3))]
        first, others = ("prefixItems", "items") if self.draft == 2020 else ("items", "additionalItems")
        schema = {"type": "array", first: [item for item, _ in items]}
        low, high = 0, len(items)
        more = None
        if self.r.random() < 0.4:
            schema[others], more = self.make(depth)
            high += 2
        elif self.r.random() < 0.5:
            schema[others] = False
        if self.r.random() < 0.5:
            low = schema["minItems"] = self.r.randint(0, len(items))
        makers = [maker for _, maker in items] + 2 * [more]
        return schema, lambda: [maker() for maker in makers[:self.r.randint(low, high)]]

    def object(self, depth):
        names = self.r.sample(NAMES, self.r.randint(0, 5))
        made = {name: self.make(depth) for name in names}
        required = [name for name in names if self.r.random() < 0.5]
        schema = {"type": "object", "properties": {name: made[name][0] for name in names}}
        more = None
        if self.r.random() < 0.25:
            schema["additionalProperties"], more = self.make(depth)
        elif self.r.random() < 0.5:
            schema["additionalProperties"] = False
        if required or self.draft > 4:
            schema["required"] = self.r.sample(required, len(required))
        if required and self.r.random() < 0.1:
            schema["minProperties"] = 1

        def maker():
            value = {name: made[name][1]() for name in names if name in required or self.r.random() < 0.5}
            for _ in range(self.r.randint(0, 2) if more else 0):
                value.setdefault(self.r.choice(["other", "nam", "namespace", "字", "a\tb", "\""]), more())
            order = names + [name for name in value if name not in names]
            return {name: value[name] for name in order if name in value}

        return schema, maker

    def any_of(self, depth):
        made = [self.make(depth) for _ in range(self.r.randint(1, 3))]
        return {"anyOf": [schema for schema, _ in made]}, lambda: self.r.choice(made)[1]()

    def any_of_siblings(self, depth):
        """An object of which one property or the other must be there."""
        a, b = self.make(depth), self.make(depth)
        schema = {"type": "object", "properties": {"a": a[0], "b": b[0]}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
        return schema, lambda: {name: made[1]() for name, made in self.r.choice([{"a": a}, {"b": b}, {"a": a, "b": b}]).items()}

    def one_of(self, depth):
        made = [made for made in (self.string(depth), self.integer(depth), self.array(depth), self.object(depth), self.boolean(depth))
                if self.r.random() < 0.5] or [self.null(depth)]
        return {"oneOf": [schema for schema, _ in made]}, lambda: self.r.choice(made)[1]()

    def one_of_objects(self, depth):
        made = []
        for kind in ("cat", "dog", "bird")[:self.r.randint(1, 3)]:
            schema, maker = self.make(depth)
            tag = {"const": kind} if self.draft > 4 else {"enum": [kind]}
            made.append(({"type": "object", "properties": {"kind": tag, "value": schema}, "required": ["kind", "value"]},
                         lambda kind=kind, maker=maker: {"kind": kind, "value": maker()}))
        return {"oneOf": [schema for schema, _ in made]}, lambda: self.r.choice(made)[1]()

    def all_of(self, depth):
        """Objects' properties and requirements together, or one schema alone."""
        if self.r.random() < 0.3:
            schema, maker = self.make(depth)
            return {"allOf": [schema]}, maker
        a, b, c = self.make(depth), self.make(depth), self.make(depth)
        schema = {"allOf": [{"type": "object", "properties": {"a": a[0]}}, {"properties": {"b": b[0], "a": {}}, "required": ["b"]}],
                  "properties": {"c": c[0]}}
        return schema, lambda: {name: made[1]() for name, made in (("a", a), ("b", b), ("c", c)) if name == "b" or self.r.random() < 0.5}

    def reference(self, depth):
        if len(self.definitions) < 3 and self.r.random() < 0.6:
            self.define(f"D/{len(self.definitions)}")
        done = [name for name, made in self.definitions.items() if made]
        if not done:
            return self.null(depth)
        name = self.r.choice(done)
        reference = {"$ref": f"#/{self.where}/{name.replace('/', '~1')}"}
        if self.draft == 2020 and self.r.random() < 0.2:
            reference["description"] = "An annotation."
        return reference, self.definitions[name][1]

    def define(self, name):
        """A tree, or any other schema."""
        self.definitions[name] = None
        if self.r.random() < 0.5:
            self.definitions[name] = self.make(2)
            return
        label, label_maker = self.make(3)
        reference = {"$ref": f"#/{self.where}/{name.replace('/', '~1')}"}

        def maker(depth=0):
            children = [maker(depth + 1) for _ in range(self.r.randint(0, 2) if depth < 3 else 0)]
            return {"label": label_maker(), "children": children}

        self.definitions[name] = ({"type": "object", "properties": {"label": label, "children": {"type": "array", "items": reference}},
                                   "required": ["label", "children"], "additionalProperties": False}, maker)


def random_schema(seed):
    """Returns (draft, schema, maker)."""
    rng = random.Random(seed)
    draft = rng.choice([4, 7, 2020, 2020])
    schema, maker = Schemas(rng, draft).document()
    return draft, schema, maker
