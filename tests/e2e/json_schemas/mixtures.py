"""Random JSON Schemas in which any keywords meet: most of what is in force together was never written together.

What is valid is for a validator to say. Many have no valid value, or are refused.
"""
import random

VALUES = [None, True, False, 0, 1, 2, 3.5, 1.0, "", "a", "b", "abc", [], [1], ["a", 1], {}, {"a": 1}, {"a": "a", "b": 2}]
NAMES = ["a", "b", "c"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
PATTERNS = ["^a", "b$", "^[abc]*$", "^.{2}$", "^(a|bc)+$"]


class Mixtures:
    def __init__(self, rng):
        self.r = rng

    def document(self):
        schema = self.make(0)
        if isinstance(schema, dict):
            schema["$defs"] = {name: self.make(2) for name in ("x", "y")}
        return schema

    def make(self, depth):
        if self.r.random() < 0.06:
            return self.r.choice([True, False, {}])
        if depth > 3:
            return self.r.choice([{"type": self.r.choice(TYPES[:5])}, {"const": self.r.choice(VALUES)}, {"enum": self.r.sample(VALUES, 4)}])
        schema = {}
        kinds = [self.of_type, self.of_type, self.of_objects, self.of_objects, self.of_arrays, self.of_strings, self.of_numbers, self.of_values,
                 self.of_others, self.of_others]
        for kind in self.r.sample(kinds, self.r.choice([1, 2, 2, 3, 4])):
            kind(schema, depth + 1)
        if self.r.random() < 0.02:
            self.unsupported(schema, depth + 1)
        return schema

    def chance(self, schema, name, probability, make):
        if self.r.random() < probability:
            schema[name] = make()

    def of_type(self, schema, _):
        schema["type"] = self.r.choice([self.r.choice(TYPES), self.r.sample(TYPES, 2), "object", "array", "string", "number"])

    def of_objects(self, schema, depth):
        self.chance(schema, "properties", 0.8, lambda: {name: self.make(depth) for name in self.r.sample(NAMES, self.r.randint(1, 3))})
        self.chance(schema, "required", 0.4, lambda: self.r.sample(NAMES, self.r.randint(1, 2)))
        self.chance(schema, "additionalProperties", 0.3, lambda: self.r.choice([False, False, True, self.make(depth)]))
        self.chance(schema, "minProperties", 0.05, lambda: self.r.randint(0, 2))
        self.chance(schema, "maxProperties", 0.05, lambda: self.r.randint(0, 4))
        self.chance(schema, "unevaluatedProperties", 0.05, lambda: False)

    def of_arrays(self, schema, depth):
        self.chance(schema, "items", 0.7, lambda: self.make(depth))
        self.chance(schema, "prefixItems", 0.3, lambda: [self.make(depth) for _ in range(self.r.randint(1, 3))])
        self.chance(schema, "minItems", 0.3, lambda: self.r.randint(0, 3))
        self.chance(schema, "maxItems", 0.3, lambda: self.r.randint(0, 4))
        self.chance(schema, "unevaluatedItems", 0.05, lambda: False)

    def of_strings(self, schema, _):
        self.chance(schema, "minLength", 0.4, lambda: self.r.randint(0, 3))
        self.chance(schema, "maxLength", 0.4, lambda: self.r.randint(1, 5))
        self.chance(schema, "pattern", 0.4, lambda: self.r.choice(PATTERNS))
        self.chance(schema, "format", 0.2, lambda: self.r.choice(["int32", "uri", "password"]))

    def of_numbers(self, schema, _):
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            self.chance(schema, name, 0.3, lambda: self.r.choice([-1, 0, 0.5, 1, 2, 3.25, 5, -0.125]))
        self.chance(schema, "multipleOf", 0.1, lambda: 1)

    def of_values(self, schema, _):
        if self.r.random() < 0.7:
            schema["enum"] = self.r.sample(VALUES, self.r.randint(1, 8))
        else:
            schema["const"] = self.r.choice(VALUES)

    def of_others(self, schema, depth):
        name = self.r.choice(["anyOf", "anyOf", "oneOf", "allOf", "allOf", "$ref"])
        if name == "$ref":
            schema[name] = self.r.choice(["#/$defs/x", "#/$defs/y", "#"])
        else:
            schema[name] = [self.make(depth) for _ in range(self.r.choice([1, 2, 2, 3]))]

    def unsupported(self, schema, depth):
        name = self.r.choice(["not", "if", "uniqueItems", "contains", "propertyNames", "patternProperties", "dependentRequired",
                              "dependentSchemas", "multipleOf"])
        schema[name] = {"uniqueItems": True, "multipleOf": 2, "patternProperties": {"a": self.make(depth)},
                        "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": self.make(depth)}}.get(name) or self.make(depth)
        if name == "if":
            schema["then"] = self.make(depth)


def random_mixture(seed):
    return Mixtures(random.Random(seed)).document()
