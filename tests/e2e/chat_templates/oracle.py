#!/usr/bin/env python3
"""Compares Lockstep's chat templates with jinja2 on random conversations and random snippets.

    oracle.py TOOL TEMPLATE_DIR... [--count N] [--seed S] [--only templates|snippets] [--skip-literals] [--save FILE]

TOOL reads one JSON object a line, {"template", "variables", "markup", "now"}, and answers one a line, flushed:
{"pieces": [{"text", "is_markup"}, ...]} or {"error"}. `now` is what strftime_now(format) tells, in seconds, as UTC.
The concatenated text must be what jinja2 renders, set up as Hugging Face's transformers does. What jinja2 cannot render
because a value is undefined, of a type for which Python has no such operation, or a filter is not there, TOOL may. No character that came from
`variables` may be markup; the template's own text that is printed, and `markup`, must be.

Where a character came from is found by rendering again with jinja2, the ASCII of the variables (or of the
template's text) replaced one to one by Yi syllables: if that reads the same once replaced back, a syllable says
who wrote the character at its position. If it doesn't (the template compares or splits it), that render is not
checked this way; but strings in variables also carry syllables of their own, which are looked for in every render.
Yi because Python's repr prints it as it is, it has no case and no template has it.
"""
import argparse
import collections
import datetime
import functools
import json
import pathlib
import random
import re
import subprocess
import sys
import warnings

try:
    import jinja2
    import jinja2.ext
    import jinja2.nodes as nodes
    import jinja2.sandbox
except ImportError:
    sys.exit("oracle.py needs jinja2 (pip install jinja2)")

from conversations import MARKS, Conversations
from snippets import Snippets

# Quotes and backslashes stay: JSON and Python's repr write them by rules of their own.
SHADED = {c: c + 0xA100 for c in range(33, 127) if chr(c) not in "'\"\\"} | {0xFF5C: 0xA180, 0x2581: 0xA181}
UNSHADED = {shade: c for c, shade in SHADED.items()}
PYTHON_ERRORS = ("UndefinedError", "TypeError", "AttributeError", "TemplateAssertionError")
STRUCTURAL = {"role", "type"}  # templates branch on these values


# What jinja2 says.

def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    return env


ENV = environment()


def shade_printed(node):
    """Replaces literals whose characters are printed as they are."""
    if isinstance(node, nodes.TemplateData):
        node.data = node.data.translate(SHADED)
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        node.value = node.value.translate(SHADED)
    elif isinstance(node, (nodes.Add, nodes.Concat)):
        for child in node.iter_child_nodes():
            shade_printed(child)
    elif isinstance(node, nodes.CondExpr):
        shade_printed(node.expr1)
        if node.expr2 is not None:
            shade_printed(node.expr2)


@functools.lru_cache(maxsize=1000)
def compiled(source, shaded=False):
    if not shaded:
        return ENV.from_string(source)
    tree = ENV.parse(source)
    for output in tree.find_all(nodes.Output):
        for node in output.nodes:
            shade_printed(node)
    return ENV.from_string(tree)


def rendered(request, shaded=False, variables=None, markup=None):
    """Returns (text, None) or (None, error)."""
    now = datetime.datetime.fromtimestamp(request["now"], datetime.timezone.utc)
    names = dict(request["variables"] if variables is None else variables)
    names.update(request["markup"] if markup is None else markup)
    try:
        return compiled(request["template"], shaded).render(strftime_now=now.strftime, **names), None
    except Exception as error:  # Whatever Python raises is a failed render.
        return None, f"{type(error).__name__}: {error}"


def shade_strings(value):
    if isinstance(value, str):
        return value.translate(SHADED)
    if isinstance(value, list):
        return [shade_strings(item) for item in value]
    if isinstance(value, dict):
        return {key: item if key in STRUCTURAL else shade_strings(item) for key, item in value.items()}
    return value


def shaded_positions(text, shaded):
    """The positions of `text` whose characters were shaded; None where shading changed more than characters."""
    if shaded is None or shaded.translate(UNSHADED) != text:
        return None
    return [i for i, c in enumerate(shaded) if ord(c) in UNSHADED]


def template_positions(request, text):
    markup = {name: value.translate(SHADED) for name, value in request["markup"].items()}
    return shaded_positions(text, rendered(request, shaded=True, markup=markup)[0])


def variable_positions(request, text):
    if not request["is_marked"]:
        return None
    return shaded_positions(text, rendered(request, variables=shade_strings(request["variables"]))[0])


# What TOOL says.

def answers(tool, requests):
    """Returns an answer a request; fewer where TOOL ended early."""
    lines = "".join(json.dumps({key: request[key] for key in ("template", "variables", "markup", "now")}) + "\n"
                    for request in requests)
    try:
        done = subprocess.run([tool], input=lines.encode(), stdout=subprocess.PIPE, timeout=120)
        output = done.stdout
        if done.returncode != 0:
            print(f"TOOL ended with {done.returncode}")
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
        print("TOOL took more than 120 s")
    try:
        return [json.loads(line) for line in output.decode().split("\n")[:-1]]
    except ValueError as error:
        sys.exit(f"TOOL wrote a line that is no JSON: {error}")


def around(text, position):
    return None if text is None else text[max(0, position - 40):position + 60]


def first_difference(left, right):
    return next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


def difference(request, answer, counts, skip_literals):
    """None, or what is wrong with `answer`. Counts which checks were possible."""
    text, error = rendered(request)
    counts["renders"] += 1
    counts["ok"] += error is None
    is_lenient = error is not None and error.startswith(PYTHON_ERRORS)
    if (error is not None) != ("error" in answer) and not is_lenient:
        return f"jinja2: {error or repr(text[:300])}\ntool:   {answer.get('error') or repr(joined(answer)[:300])}"
    if error is not None:
        return None
    got = joined(answer)
    if got != text:
        i = first_difference(text, got)
        return f"at {i}\njinja2: {around(text, i)!r}\ntool:   {around(got, i)!r}"
    is_markup = [piece["is_markup"] for piece in answer["pieces"] for _ in piece["text"]]
    wrong = [i for i, c in enumerate(text) if c in MARKS and is_markup[i]]
    if wrong:
        return f"variables' {text[wrong[0]]!r} at {wrong[0]} is markup: {around(text, wrong[0])!r}"
    return wrong_origin(request, text, is_markup, counts, skip_literals)


def wrong_origin(request, text, is_markup, counts, skip_literals):
    positions = variable_positions(request, text)
    counts["variables"] += positions is not None
    wrong = [i for i in positions or [] if is_markup[i]]
    if wrong:
        return f"variables' {text[wrong[0]]!r} at {wrong[0]} is markup: {around(text, wrong[0])!r}"
    is_quoted = request["name"] == request["template"] and "tojson" in request["template"]  # what it says is then no markup
    positions = None if skip_literals or is_quoted else template_positions(request, text)
    counts["literals"] += positions is not None
    wrong = [i for i in positions or [] if not is_markup[i]]
    if wrong:
        return f"the template's {text[wrong[0]]!r} at {wrong[0]} is no markup: {around(text, wrong[0])!r}"
    return None


def joined(answer):
    return "".join(piece["text"] for piece in answer["pieces"])


def printable(request):
    """Whether jinja2's answer doesn't depend on Python: no addresses and views, no numbers above 64 bits."""
    text = rendered(request)[0]
    return text is None or (len(text) < 20000 and not re.search(
        r" at 0x|dict_\w+\(|\d{19}|<class |<bound|<built", text))


# Both.

def template_requests(rng, directories, count):
    paths = sorted(path for directory in directories for path in pathlib.Path(directory).glob("*.jinja"))
    if not paths:
        sys.exit(f"no *.jinja in {' '.join(directories)}")
    make = Conversations(rng)
    return [request for i in range(count) if printable(request := make.request(paths[i % len(paths)]))]


def snippet_requests(rng, count):
    make = Snippets(rng)
    requests = []
    while len(requests) < count:
        request = make.request()
        if printable(request):
            requests.append(request)
    return requests


class Report:
    """Prints the 20 smallest mismatches, at most two of one template."""

    def __init__(self, save):
        self.mismatches = []
        self.save = save

    def add(self, request, what):
        self.mismatches.append((request, what))
        if self.save:
            self.save.write(json.dumps(request) + "\n")

    def print(self):
        size = lambda mismatch: len(mismatch[0]["name"]) + len(json.dumps(used_variables(mismatch[0])))
        per_name = collections.Counter()
        num_printed = 0
        for request, what in sorted(self.mismatches, key=size):
            per_name[request["name"]] += 1
            if num_printed < 20 and per_name[request["name"]] <= 2:
                num_printed += 1
                variables = json.dumps(used_variables(request), ensure_ascii=False)
                name = request["name"] if request["name"] != request["template"] else repr(request["template"])
                print(f"--- {name}\n{what}\nvariables: {variables[:1500]}")


def used_variables(request):
    return {name: value for name, value in request["variables"].items()
            if re.search(rf"\b{name}\b", request["template"])}


def compare(kind, tool, requests, report, skip_literals):
    counts = dict.fromkeys(("renders", "ok", "variables", "literals"), 0)
    start = 0
    while start < len(requests):
        batch = requests[start:start + 500]
        got = answers(tool, batch)
        for request, answer in zip(batch, got):
            what = difference(request, answer, counts, skip_literals)
            if what:
                report.add(request, what)
        if len(got) < len(batch):
            report.add(batch[len(got)], "TOOL gave no answer to this (or lost it, if it doesn't flush every line)")
        start += min(len(got) + 1, len(batch))
    share = lambda name: f"{100 * counts[name] / max(1, counts['renders']):.0f} %"
    print(f"{kind}: {counts['renders']} renders, {share('ok')} without an error; origin checked of variables in "
          f"{share('variables')}, of the template's text in {share('literals')}")


def main():
    warnings.simplefilter("ignore", SyntaxWarning)  # of the Python that jinja2 makes of odd snippets
    parser = argparse.ArgumentParser()
    parser.add_argument("tool")
    parser.add_argument("directories", nargs="*", metavar="TEMPLATE_DIR")
    parser.add_argument("--count", type=int, default=2000, help="renders of templates, and as many of snippets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=["templates", "snippets"])
    parser.add_argument("--skip-literals", action="store_true", help="a template's own text need not be markup")
    parser.add_argument("--save", type=argparse.FileType("w"), help="writes the requests that mismatched, one a line")
    options = parser.parse_args()
    report = Report(options.save)
    num_renders = 0
    if options.only != "snippets":
        requests = template_requests(random.Random(options.seed), options.directories, options.count)
        compare("templates", options.tool, requests, report, options.skip_literals)
        num_renders += len(requests)
    if options.only != "templates":
        requests = snippet_requests(random.Random(options.seed), options.count)
        compare("snippets", options.tool, requests, report, options.skip_literals)
        num_renders += len(requests)
    report.print()
    if report.mismatches:
        sys.exit(f"{len(report.mismatches)} of {num_renders} renders differ")
    print(f"{num_renders} renders, all equal")


if __name__ == "__main__":
    main()
