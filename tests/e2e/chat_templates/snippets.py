"""Random small templates over what chat templates use of Jinja."""
import re

from conversations import MARKS

LITERALS = ["", "a", "ab", "Abc", "x y", " pad ", "hello World", "it's", 'q"q', "tab\t", "nl\n", "back\\slash", "<|x|>",
            "\u65e5\u672c\u8a9e", "\U0001f642z", "12", "-3.5", "a,b,,c", "line1\nline2\r\nline3", "A-b c(d", "{}", "%}",
            "\xa0n\u3000"]
TEXTS = [" ", "\n", "  ", "\n\n", "\t", "\n  ", " \n", "\n \n", "\n\t", "a", "word", "<|im_start|>", "<s>", "{ ", "{x", "}", "%}",
         "}}", "#}", "-", "{ %", "x\n", "\n  y", "\r\n", "\xa0", "\u3000\n", "'", "\u65e5", "\x0b", "$", "\\n", "| "]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping",
         "iterable", "sequence", "callable"]


class Snippets:
    """Random small templates. Expressions are made for a type, so that most render; `scope` maps a name to its type."""

    TYPES = {"i": "int", "j": "int", "x": "float", "s": "str", "t": "str", "e": "str", "b": "bool", "ints": "ints",
             "strs": "strs", "d": "dict", "d.name": "str", "d['n']": "int", "d.sub.k": "str", "d.f": "float",
             "d.flag": "bool", "dicts": "dicts", "n": "none", "d.none": "none", "nope": "undefined",
             "d.nope": "undefined", "empty": "ints"}

    def __init__(self, rng):
        self.rng = rng
        self.scope = {}
        self.macros = {}
        self.loops = 0
        self.fresh = 0

    def maybe(self, chance):
        return self.rng.random() < chance

    def pick(self, *choices):
        return self.rng.choice(choices)

    def request(self):
        is_marked = self.maybe(0.5)
        self.scope, self.macros, self.loops, self.fresh = dict(self.TYPES), {}, 0, 0
        template = "".join(self.statement(self.pick(0, 1, 1, 2)) for _ in range(self.pick(1, 1, 2, 3, 5)))
        return {"name": template, "template": template, "variables": self.variables(is_marked),
                "markup": {"bos_token": "<s>"}, "now": 1700000000, "is_marked": is_marked}

    def word(self, is_marked):
        word = self.rng.choice(LITERALS)
        i = self.rng.randrange(len(word) + 1)
        return word[:i] + self.rng.choice(MARKS) + word[i:] if is_marked and word else word

    def variables(self, m):
        number = lambda: self.rng.randrange(-9, 30)
        dicts = [{"name": self.word(m), "n": number(), "ok": self.maybe(0.5)} | ({"opt": 1} if self.maybe(0.5) else {})
                 for _ in range(self.rng.randrange(1, 4))]
        return {"i": number(), "j": number(), "x": self.pick(0.5, -2.5, 3.0, 1e16, 0.1, 1e-5, 2.675), "s": self.word(m),
                "t": self.word(m), "e": "", "b": self.maybe(0.5), "n": None, "dicts": dicts, "empty": [],
                "ints": [number() for _ in range(self.rng.randrange(1, 6))],
                "strs": [self.word(m) for _ in range(self.rng.randrange(1, 5))],
                "d": {"name": self.word(m), "n": number(), "flag": self.maybe(0.5), "f": 1.5, "none": None,
                      "sub": {"k": self.word(m), "Z": [1, {"q": None}], "a": {}}}}

    # Expressions.

    def of(self, kind, depth=2):
        """An expression of type `kind`, rarely of another."""
        if self.maybe(0.008):
            kind = self.pick("int", "float", "str", "bool", "ints", "strs", "dict", "dicts", "none", "undefined")
        names = [name for name, type_ in self.scope.items() if type_ == kind]
        if names and (depth <= 0 or self.maybe(0.3)):
            return self.rng.choice(names)
        make = {"int": self.int, "float": self.float, "str": self.str, "bool": self.bool, "ints": self.ints,
                "strs": self.strs, "dict": self.dict, "dicts": self.dicts}.get(kind)
        return make(depth - 1) if make else self.pick("none", "n") if kind == "none" else "nope"

    def group(self, kind, depth):
        """An operand: mostly in parentheses, sometimes left to precedence."""
        text = self.of(kind, depth)
        return text if re.fullmatch(r"[\w.]+", text) or self.maybe(0.12) else f"({text})"

    def any(self, depth):
        return self.of(self.pick("int", "float", "str", "str", "str", "bool", "ints", "strs", "dict", "dicts"), depth)

    def literal(self, text=None):
        text = self.rng.choice(LITERALS) if text is None else text
        quote = self.pick("'", '"')
        if self.maybe(0.1):
            return quote + self.pick("\\x41", "\\u65e5b", "\\q", "a\\\\", "\\101",
                                     "\\'", '\\"', "\\r\\n", "\\t") + quote
        text = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
        return quote + (text.replace("\n", "\\n") if self.maybe(0.8) else text) + quote

    def ternary(self, kind, depth):
        if self.maybe(0.15):
            return f"({self.of(kind, depth)} if {self.of('bool', depth)})"
        return f"({self.of(kind, depth)} if {self.of('bool', depth)} else {self.of(kind, depth)})"

    def int(self, d):
        if d < 0 or self.maybe(0.2):
            return self.pick("0", "1", "2", "7", "-3", "10", "1_000")
        g = lambda kind: self.group(kind, d)
        number = self.pick("2", "3", "-4", "7")
        makes = [lambda: f"{g('int')} {self.pick('+', '-')} {g('int')}", lambda: f"{g('int')} * {number}",
                 lambda: f"{g('int')} {self.pick('//', '%')} {number}",
                 lambda: f"{self.pick('2', '-2', '3')} ** {self.pick('0', '2', '3', '2 ** 2')}",
                 lambda: f"{self.group(self.pick('str', 'ints', 'strs', 'dict'), d)}|{self.pick('length', 'count')}",
                 lambda: f"{g('str')}.{self.pick('find', 'count')}({self.literal(self.pick('a', 'b', 'l'))})",
                 lambda: f"{g('ints')}|{self.pick('sum', 'sum(start=5)')}", lambda: f"-{g('int')}",
                 lambda: f"ints|{self.pick('first', 'last', 'min', 'max')}", lambda: f"ints[{self.pick('0', '-1')}]",
                 lambda: f"{g('str')}|int{self.pick('', '(7)', '(default=-1)')}", lambda: f"{g('float')}|int",
                 lambda: f"{g('int')}|abs", lambda: f"dicts|sum(attribute='n')", lambda: self.ternary("int", d),
                 lambda: f"{g('bool')}|int", lambda: f"{g('int')}|default(3)", lambda: f"nope|default({number})",
                 lambda: "dicts[0]" + self.pick(".n", "['n']")]
        if self.loops:
            makes += [lambda: "loop." + self.pick("index", "index0", "length", "revindex", "revindex0")] * 4
        return self.rng.choice(makes)()

    def float(self, d):
        if d < 0 or self.maybe(0.2):
            return self.pick("1.5", "0.25", "-2.5", "1e3", "2.0", "1e20")
        g = lambda kind: self.group(kind, d)
        makes = [lambda: f"{g('int')} / {self.pick('2', '3', '-4', '0.5')}", lambda: f"{g('float')} + {g('int')}",
                 lambda: f"{g('int')}|float", lambda: f"{g('str')}|float{self.pick('', '(1.5)')}",
                 lambda: f"{g('float')}|round{self.pick('', '(1)', '(2)')}", lambda: "2 ** -1",
                 lambda: f"{g('float')}|round(1, {self.pick(repr('ceil'), repr('floor'))})",
                 lambda: f"{g('float')} {self.pick('//', '%')} 2", lambda: f"{g('float')} * 2", lambda: f"{g('float')}|abs"]
        return self.rng.choice(makes)()

    def bool(self, d):
        if d < 0 or self.maybe(0.15):
            return self.pick("true", "false", "True", "b")
        g = lambda kind: self.group(kind, d)
        compare = lambda: self.pick("==", "!=", "<", ">", "<=", ">=")
        isnt = self.pick("is", "is", "is not")
        makes = [lambda: f"{g('int')} {compare()} {self.group(self.pick('int', 'float'), d)}",
                 lambda: f"{g('int')} < {g('int')} {compare()} {g('int')}", lambda: f"{g('str')} {compare()} {g('str')}",
                 lambda: f"{g('str')} {self.pick('in', 'not in')} {self.group(self.pick('str', 'strs', 'dict'), d)}",
                 lambda: f"{g('int')} in {g('ints')}", lambda: f"not {g('bool')}", lambda: f"not {g('str')} in {g('strs')}",
                 lambda: f"{g('bool')} {self.pick('and', 'or')} {g('bool')}",
                 lambda: f"{self.of('bool', d)} {self.pick('and', 'or')} not {self.of('bool', d)}",
                 lambda: f"{self.rng.choice(list(self.scope))} {isnt} {self.rng.choice(TESTS)}",
                 lambda: f"({self.any(d)}) {isnt} {self.rng.choice(TESTS)}",
                 lambda: f"{self.pick('i', 'j')} {isnt} {self.pick('even', 'odd', 'divisibleby 3', 'divisibleby(2)')}",
                 lambda: f"{g('int')} {isnt} {self.pick('eq', 'ne', 'lt', 'gt', 'ge', 'le', 'equalto')}({g('int')})",
                 lambda: f"{g('int')} {isnt} in {self.pick('[1, 2]', 'ints')}",
                 lambda: f"{g('str')} {isnt} {self.pick('lower', 'upper')}", lambda: f"{self.any(d)} == {self.any(d)}",
                 lambda: f"{g('str')}.{self.pick('startswith', 'endswith')}({self.literal(self.pick('a', 'h', 'd', ''))})",
                 lambda: f"{g('str')}.startswith(('a', {self.literal()}))", lambda: f"'name' in {self.pick('d', 'dicts[0]')}"]
        if self.loops:
            makes += [lambda: self.pick("loop.first", "loop.last", "loop.previtem is defined", "not loop.last",
                                        "loop.nextitem is undefined")] * 4
        return self.rng.choice(makes)()

    def str(self, d):
        if d < 0 or self.maybe(0.2):
            return self.literal()
        g = lambda kind: self.group(kind, d)
        bound = lambda: self.pick("", "", "0", "1", "2", "-1", "-2", "99", "i")
        step = lambda: self.pick("", "", ":", ":2", ":-1", ":-2")
        filters = ["trim", "upper", "lower", "capitalize", "title", "string", "default('z')", "replace('a', 'Q')",
                   "replace('l', '', 1)", "reverse", "first", "last", "indent", "indent(2, true)", "default('z', true)",
                   "indent(width=3, first=true, blank=true)", "trim('ab')", "list|join('-')", "trim|upper"]
        methods = ["strip()", "lstrip()", "rstrip()", "strip('ab ')", "upper()", "lower()", "title()", "capitalize()",
                   "replace('a', 'Q')", "replace('l', '', 1)", "removeprefix('a')", "removesuffix('d')", "strip('\\n')"]
        arguments = self.pick("", "", "(indent=2)", "(indent=4, sort_keys=true)", "(sort_keys=true)", "(ensure_ascii=true)",
                              "(separators=(',', ':'))", "(indent=2, separators=(',', ': '))")
        makes = [lambda: f"{g('str')} ~ {self.group(self.pick('str', 'int', 'float', 'bool', 'none', 'undefined'), d)}",
                 lambda: f"{g('str')} + {g('str')}", lambda: f"{g('str')} * {self.pick('0', '2')}",
                 lambda: f"{g('str')}|{self.rng.choice(filters)}", lambda: f"{g('str')}|{self.rng.choice(filters)}",
                 lambda: f"{g('str')}.{self.rng.choice(methods)}", lambda: f"{g('str')}.{self.rng.choice(methods)}",
                 lambda: f"{g('str')}[{bound()}:{bound()}{step()}]", lambda: f"{g('str')}[{self.pick('0', '-1', '1')}]",
                 lambda: f"{g('strs')}|join",
                 lambda: f"{self.group(self.pick('ints', 'strs'), d)}|join({self.literal(self.pick('-', ', ', '|'))})",
                 lambda: f"{self.literal(self.pick('-', '; '))}.join({self.of('strs', d)})", lambda: self.ternary("str", d),
                 lambda: f"{self.group(self.pick('dict', 'dicts', 'strs', 'int', 'float', 'str', 'bool'), d)}|tojson{arguments}",
                 lambda: f"{self.pick('dicts', 'dicts[:2]')}|map(attribute='name')|join('/')",
                 lambda: f"{self.group(self.pick('int', 'float', 'ints', 'dict'), d)}|string",
                 lambda: f"{g('int')} ~ ''", lambda: f"{self.pick('nope', 'd.nope', 'n')}|default({self.of('str', d)})",
                 lambda: f"dicts|map(attribute='opt', default='none')|join", lambda: f"d.get('nope', {self.of('str', d)})",
                 lambda: "strs|" + self.pick("min", "max", "first", "last"), lambda: f"d[{self.literal('name')}]"]
        if self.macros:
            makes += [self.macro_call] * 5
        if self.loops:
            makes += [lambda: "loop.cycle('o', 'p')"]
        return self.rng.choice(makes)()

    def ints(self, d):
        if d < 0 or self.maybe(0.15):
            return self.pick("[1, 2, 3]", "[]", "(3, 1, 2)", "[1,]", "range(3)|list", "range(5, 0, -2)|list", "[0, -1]")
        g = lambda kind: self.group(kind, d)
        makes = [lambda: f"[{self.of('int', d)}, {self.of('int', d)}]", lambda: f"ints + [{self.of('int', d)}]",
                 lambda: f"{g('ints')}[{self.pick('', '1', '-2')}:{self.pick('', '2', '-1')}{self.pick('', ':-1', ':2')}]",
                 lambda: f"{g('ints')}|sort{self.pick('', '(reverse=true)')}", lambda: f"{g('ints')}|reverse|list",
                 lambda: f"{g('ints')}|unique|list", lambda: f"{g('ints')}|{self.pick('select', 'reject')}('odd')|list",
                 lambda: f"{g('ints')}|{self.pick('select', 'reject')}('{self.pick('gt', 'le', 'eq', 'divisibleby')}', 2)|list",
                 lambda: f"dicts|map(attribute='n')|list", lambda: f"{g('strs')}|map('length')|list",
                 lambda: f"{g('ints')}|map('{self.pick('abs', 'int')}')|list"]
        return self.rng.choice(makes)()

    def strs(self, d):
        if d < 0 or self.maybe(0.15):
            return f"[{self.literal()}, {self.literal()}]"
        g = lambda kind: self.group(kind, d)
        makes = [lambda: f"{g('str')}.{self.pick('split', 'rsplit')}({self.pick('', repr(' '), repr(','), repr('a') + ', 1')})",
                 lambda: f"{g('str')}.splitlines()", lambda: f"{g('str')}|list", lambda: f"strs + [{self.of('str', d)}]",
                 lambda: f"{g('strs')}|map('{self.pick('upper', 'trim', 'lower', 'title', 'capitalize', 'string')}')|list",
                 lambda: f"strs|{self.pick('sort', 'unique|list', 'sort(reverse=true)', 'sort(case_sensitive=true)')}",
                 lambda: f"{g('strs')}[{self.pick('', '1', '-1')}:{self.pick('', '-1')}{self.pick('', ':-1')}]",
                 lambda: f"{g('strs')}|reverse|list", lambda: f"{g('strs')}|select|list", lambda: f"{g('dict')}.keys()|list",
                 lambda: f"{g('dict')}|list", lambda: f"{g('strs')}|map('replace', 'a', 'Q')|list",
                 lambda: f"{g('strs')}|{self.pick('select', 'reject')}('{self.pick('equalto', 'ne')}', 'ab')|list"]
        return self.rng.choice(makes)()

    def dict(self, d):
        if d < 0 or self.maybe(0.4):
            return self.pick("d", "d.sub", "dicts[0]", "dicts[-1]", "{}", "{'a': 1, 'b': [1, (2, 3)]}")
        pairs = [
    f"{self.literal(self.pick('a', 'B', 'k k', 'name'))}: {self.any(d)}" for _ in range(
        self.rng.randrange(
            1,
             4))]
        return "{" + ", ".join(pairs) + "}"

    def dicts(self, d):
        return "dicts" + self.pick("", "", "[1:]", "[::-1]", "|selectattr('ok')|list", "|rejectattr('ok')|list",
                                   "|selectattr('n', 'gt', 3)|list", "|selectattr('opt', 'defined')|list", "|sort(attribute='n')",
                                   "|rejectattr('n', 'equalto', 3)|list", "|selectattr('name', 'string')|list",
                                   "|selectattr('n', 'in', [1, 2])|list", "|unique(attribute='ok')|list")

    def macro_call(self):
        name, parameters = self.rng.choice(list(self.macros.items()))
        arguments = [self.of(kind, 0) for _, kind in parameters[:self.rng.randrange(1, len(parameters) + 1)]]
        rest = [f"{parameter}={self.of(kind, 0)}" for parameter, kind in parameters[len(arguments):] if self.maybe(0.4)]
        return f"{name}({', '.join(arguments + rest)})"

    # Statements.

    def tag(self, text):
        return ("{%" + self.pick("", "", "", "-", "+") + self.pick(" ", " ", "") + text
                + self.pick(" ", " ", "  ", "\n") + self.pick("", "", "", "-", "+") + "%}")

    def shown(self, text):
        return "{{" + self.pick("", "", "", "-") + self.pick(" ", " ", "\n") + text + self.pick(" ", " ", "") + \
            self.pick("", "", "", "-") + "}}"

    def text(self):
        return "".join(self.rng.choices(TEXTS, k=self.rng.randrange(0, 4)))

    def block(self, depth, num=3):
        """Names set within stay within, whatever jinja2 says: the generator would rather know too few."""
        scope = dict(self.scope)
        body = self.text() + "".join(self.statement(depth - 1) for _ in range(self.rng.randrange(1, num))) + self.text()
        self.scope = scope
        return body

    def statement(self, depth):
        makes = [self.print] * 6 + [self.set] * 3 + [self.comment]
        if depth > 0:
            makes += [self.if_] * 3 + [self.for_] * 4 + [self.namespace, self.block_set]
        if depth > 1:
            makes += [self.macro, self.recursive_macro]
        if self.loops:
            makes += [self.leave]
        return self.text() + self.rng.choice(makes)(depth) + self.text()

    def print(self, depth):
        if self.maybe(0.2):
            return self.shown(self.pick("nope", "d.nope", "n", "s.nope", "ints[99]", "bos_token", "true", "e", "empty|first",
                                        "s|safe", "{'a': {'b': 1}}", "(1,)", "()", "'a' 'b'", "d|dictsort", "d.sub|dictsort(reverse=true)",
                                        "1 if false", "-2 ** 2", "[d, d]|map(attribute='sub.k')|list", "d.items()|list", "strs.0",
                                        "d.values()|list", "d|items|list", "d.nope.x" if self.maybe(0.2) else "d.nope is defined",
                                        "1.0", "7|round", "7.5|round|int", "nope ~ n", "nope|length"))
        return self.shown(self.any(2))

    def comment(self, depth):
        if self.maybe(0.3):
            return (self.pick("{% raw %}", "{%- raw -%}", "{%-raw %}") + self.pick(" {{ x }} ", "{% if %}\n", "\n {# #}")
                    + self.pick("{% endraw %}", "{%- endraw -%}", "{% endraw -%}", "{%- endraw %}"))
        return "{#" + self.pick("", "-", "+") + self.pick(" c ", "", "\n{{ s }}\n",
                                " {% if %} ") + self.pick("", "-", "+") + "#}"

    def if_(self, depth):
        text = self.tag("if " + self.of(self.pick("bool", "bool", "bool",
                        "str", "ints", "undefined"))) + self.block(depth)
        if self.maybe(0.3):
            text += self.tag("elif " + self.of("bool")) + self.block(depth)
        if self.maybe(0.5):
            text += self.tag("else") + self.block(depth)
        return text + self.tag("endif")

    def for_(self, depth):
        a, b = self.name(), self.name()
        target, source, types = self.rng.choice([
            (a, self.of("ints"), {a: "int"}), (a, self.of("strs"), {a: "str"}), (a, self.of("str"), {a: "str"}),
            (a,
    "dicts",
    {a: "dict",
    f"{a}.name": "str",
    f"{a}['n']": "int",
    f"{a}.ok": "bool",
     f"{a}.opt": "undefined"}),
            (a, self.of("dict"), {a: "str"}), (f"{a}, {b}", self.of("dict") + ".items()", {a: "str"}),
            (f"{a}, {b}", "d|" + self.pick("items", "dictsort"), {a: "str"}
             ), (a, "nope", {a: "int"}), (a, "empty", {a: "int"}),
            (f"{a}, {b}", "[(1, 'p'), [2, 'q']]", {a: "int", b: "str"})])
        outer, loops = dict(self.scope), self.loops
        self.scope.update(types)
        self.loops = 0
        condition = f" if {self.of('bool', 1)}" if self.maybe(0.2) else ""
        self.loops = loops + 1
        body = self.block(depth)
        self.scope, self.loops = outer, loops
        otherwise = self.tag("else") + self.block(depth, 2) if self.maybe(0.25) else ""
        return self.tag(f"for {target} in {source}{condition}") + body + otherwise + self.tag("endfor")

    def leave(self, depth):
        return self.tag(f"if {self.of('bool', 1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif")

    def name(self):
        self.fresh += 1
        return f"v{self.fresh}"

    def set(self, depth):
        attributes = [name for name in self.scope if name.startswith("ns")]
        if attributes and self.maybe(0.6):
            name = self.rng.choice(attributes)
            return self.tag(f"set {name} = {self.of(self.scope[name], 1)}")
        if self.maybe(0.2):
            a, b = self.name(), self.name()
            text = self.tag(f"set {a}, {b} = {self.of('int', 1)}, {self.of('str', 1)}")
            self.scope.update({a: "int", b: "str"})
            return text
        kind = self.pick("int", "str", "str", "bool", "ints", "strs", "dict")
        name = self.name()  # of a variable's name jinja2 makes another one, also above the place where it is set
        text = self.tag(f"set {name}{self.pick(' = ', '=')}{self.of(kind, 2)}")
        self.scope[name] = kind
        return text

    def block_set(self, depth):
        name = self.name()
        text = self.tag(f"set {name}") + self.block(depth, 2) + self.tag("endset")
        self.scope[name] = "str"
        return text

    def namespace(self, depth):
        name = "ns" + self.name()
        text = self.tag(f"set {name} = namespace(n={self.of('int', 0)}, s={self.literal()}, found=false)")
        self.scope.update({f"{name}.n": "int", f"{name}.s": "str", f"{name}.found": "bool"})
        return text

    def macro(self, depth):
        name, parameters = "m" + self.name(), [("a", "str"), ("k", "int"), ("w", "str")]
        outer, macros, loops = dict(self.scope), dict(self.macros), self.loops
        self.scope.update(dict(parameters))
        self.loops = 0
        body = self.block(depth - 1, 2)
        self.scope, self.loops = outer, loops
        self.macros = macros | {name: parameters}
        return self.tag(f"macro {name}(a, k={self.pick('1', '-2', '3')}, w={self.literal()})") + \
                        body + self.tag("endmacro")

    def recursive_macro(self, depth):
        name = "r" + self.name()
        return (self.tag(f"macro {name}(v)") + self.tag("if v is mapping") + self.text()
                + self.tag("for key, item in v.items()") + f"{{{{ key }}}}:{{{{ {name}(item) }}}};" + self.tag("endfor")
                + self.tag("else") + self.shown("v|tojson") + self.tag("endif") + self.tag("endmacro")
                + self.shown(f"{name}({self.of('dict', 1)})"))
