#!/usr/bin/env python3
"""Compares the grammars that Lockstep makes of JSON Schemas with the validator jsonschema.

    oracle.py TOOL [--count N] [--seed S] [--texts T] [--only random|mixed|real]

TOOL is json_schema_tool, see there. Every text that a grammar writes must be JSON that is valid against the schema.
Values that are valid, and that the schema's author would write, must be texts of the grammar in each of the ways in
which json.dumps writes them.
"""
import argparse
import collections
import datetime
import json
import re
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    sys.exit("oracle.py needs jsonschema (pip install jsonschema)")

from mixtures import random_mixture
from real_schemas import REAL
from schemas import NoValue, random_schema

VALIDATORS = {4: jsonschema.Draft4Validator, 7: jsonschema.Draft7Validator, 2020: jsonschema.Draft202012Validator}
STYLES = [{"separators": (",", ":")}, {}, {"indent": 2}, {"indent": "\t"}, {"indent": 4, "separators": (",", ":")}]

CHECKER = jsonschema.FormatChecker(formats=["date", "uuid", "email", "ipv4"])


def checks(name, parse):
    @CHECKER.checks(name, raises=ValueError)
    def check(value):
        return not isinstance(value, str) or bool(parse(value))


checks("date-time", lambda text: re.match(r"\d{4}-\d\d-\d\dT", text) and datetime.datetime.fromisoformat(text).tzinfo)
checks("time", lambda text: datetime.datetime.fromisoformat("2000-01-01T" + text).tzinfo)


def answers(tool, requests):
    lines = "".join(json.dumps({key: request[key] for key in ("schema", "count", "seed", "texts")}) + "\n" for request in requests)
    done = subprocess.run([tool], input=lines.encode(), stdout=subprocess.PIPE, timeout=600)
    got = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    if done.returncode != 0 or len(got) != len(requests):
        print(f"TOOL ended with {done.returncode} at {json.dumps(requests[min(len(got), len(requests) - 1)])}")
    return got


def validator_of(draft, schema):
    return VALIDATORS[draft](schema, format_checker=CHECKER)


def valid_texts(draft, schema, maker, rng_count):
    """Texts of valid values, in several styles."""
    validator = validator_of(draft, schema)
    # Names, values and patterns are written as they are, other characters in any way.
    may_escape = all(ord(c) < 128 for c in json.dumps(schema, ensure_ascii=False)) and "pattern" not in json.dumps(schema)
    texts = []
    for i in range(rng_count):
        try:
            value = maker()
        except NoValue:
            continue
        validator.validate(value)
        escapes = may_escape and i % 2 == 0 and not has_odd_names(value)
        text = json.dumps(value, ensure_ascii=escapes, **STYLES[i % len(STYLES)])
        if "\n" + 33 * " " not in text:  # grammars have no deeper indentation
            texts.append(text)
    return texts


def has_odd_names(value):
    if isinstance(value, list):
        return any(map(has_odd_names, value))
    return isinstance(value, dict) and any(not name.isascii() or has_odd_names(inner) for name, inner in value.items())


def why_invalid(validator, text):
    """None, or what is wrong with a text that a grammar wrote."""
    if text != text.strip():
        return "white space around it"
    try:
        value = json.loads(text, parse_constant=lambda name: sys.exit(f"{name} in {text}"))
        json.dumps(value, allow_nan=False)
        text.encode()
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if error is None else error.message


def differences(request, answer, counts):
    if "error" in answer:
        refused = "supported" in answer["error"]
        counts["refused" if refused else "empty"] += 1
        if request["is_real"] or (not refused and request["texts"]):
            yield f"refused: {answer['error']}"
        return
    counts["schemas"] += 1
    validator = validator_of(request["draft"], request["validated"])
    for text in answer["written"]:
        counts["written"] += 1
        why = why_invalid(validator, text)
        if why:
            yield f"wrote {text!r}: {why}"
    for text, is_match in zip(request["texts"], answer["matches"]):
        counts["read"] += 1
        if not is_match:
            yield f"does not match {text!r}"


def without_nullable(schema):
    """nullable is OpenAPI's, and a validator knows nothing of it."""
    if isinstance(schema, list):
        return [without_nullable(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: without_nullable(each) for name, each in schema.items()}
    if schema.pop("nullable", None) is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    return schema


def random_requests(seed, count, num_texts):
    for i in range(count):
        draft, schema, maker = random_schema(seed * 1000003 + i)
        yield {"name": f"random {seed * 1000003 + i}", "draft": draft, "schema": json.dumps(schema, ensure_ascii=False), "validated": schema,
               "count": num_texts, "seed": seed + i, "texts": valid_texts(draft, schema, maker, num_texts), "is_real": False}


def mixed_requests(seed, count, num_texts):
    for i in range(count):
        schema = random_mixture(seed * 1000003 + i)
        yield {"name": f"mixture {seed * 1000003 + i}", "draft": 2020, "schema": json.dumps(schema), "validated": schema, "count": num_texts,
               "seed": seed + i, "texts": [], "is_real": False}


def real_requests(seed, num_texts):
    for name, (schema, values) in REAL.items():
        validated = without_nullable(schema)
        for value in values:
            validator_of(2020, validated).validate(value)
        texts = [json.dumps(value, **style) for value in values for style in STYLES]
        yield {"name": name, "draft": 2020, "schema": json.dumps(schema), "validated": validated, "count": 20 * num_texts, "seed": seed,
               "texts": texts, "is_real": True}


def compare(tool, requests):
    """Returns the differences."""
    found = []
    counts = collections.Counter()
    reasons = collections.Counter()
    for start in range(0, len(requests), 200):
        batch = requests[start:start + 200]
        got = answers(tool, batch)
        for request, answer in zip(batch, got):
            found += [(request, what) for what in differences(request, answer, counts)]
            if "error" in answer:
                reasons[re.sub(r'"#.*?": |\d+', "", answer["error"])[:90]] += 1
        if len(got) < len(batch):
            found.append((batch[len(got)], "TOOL gave no answer"))
    print(f"{counts['schemas']} schemas, {counts['refused']} refused, {counts['empty']} without texts; {counts['written']} texts written, "
          f"{counts['read']} read")
    for reason, number in reasons.most_common(8):
        print(f"  {number}: {reason}")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("--count", type=int, default=1000, help="random schemas")
    parser.add_argument("--texts", type=int, default=12, help="of each schema, in each direction")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["random", "mixed", "real"])
    options = parser.parse_args()
    found = []
    kinds = {"real": lambda: real_requests(options.seed, options.texts),
             "random": lambda: random_requests(options.seed, options.count, options.texts),
             "mixed": lambda: mixed_requests(options.seed, options.count, options.texts)}
    for kind, requests in kinds.items():
        if options.only in (None, kind):
            print(f"{kind}:", end=" ")
            found += compare(options.tool, list(requests()))
    per_schema = collections.Counter()
    for request, what in sorted(found, key=lambda each: len(each[0]["schema"])):
        per_schema[request["name"]] += 1
        if per_schema[request["name"]] <= 2 and len(per_schema) <= 15:
            print(f"--- {request['name']}, draft {request['draft']}: {request['schema'][:1500]}\n{what[:800]}")
    if found:
        sys.exit(f"{len(found)} differences in {len(per_schema)} schemas")
    print("no differences")


if __name__ == "__main__":
    main()
