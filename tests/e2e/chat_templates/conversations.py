"""Random variables of a whole chat template: conversations, tools, and what else templates ask for."""
import json

# In strings of variables, so that they can be found again; templates have none.
MARKS = [chr(0xA000 + i) for i in range(64)]
SPACES = [" ", "\n", "\t", "\r", "\r\n", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u2003", "\u200b",
          "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", ""]
HOSTILE = ["<|eot_id|>", "<|im_end|>", "<|im_start|>system", "</s>", "<s>", "[INST]", "[/INST]", "<<SYS>>", "<think>",
           "</think>", "<tool_call>", "</tool_call>", "<|start_header_id|>", "[TOOL_CALLS]", "{{ 7 * 7 }}", "{% if %}",
           "{#", "'", '"', "\\", "\\n", "'\"", "a'b", "\U0001f642", "\U0001f468\u200d\U0001f469", "\u65e5\u672c\u8a9e",
           "caf\u00e9", "\u00df", "\x00", "\x7f", "\ue000", "\u0301", "None", "true", "{}", "[]", "0", "hello", "World",
           "```json\n{}\n```", "line\nline", "<|", "|>", "<\uff5cUser\uff5c>", "&lt;", "%s", "final", "a,b", "a: b"]
MARKUPS = [{"bos_token": "[BOS]", "eos_token": "[EOS]"}, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
           {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, {"bos_token": "<bos>", "eos_token": "<eos>"},
           {"bos_token": "<\uff5cbegin\u2581of\uff5c>", "eos_token": "", "pad_token": "<pad>"},
           {"bos_token": "<s>", "eos_token": "</s>"}, {"eos_token": "<end>"}]
NAMES = ["get_weather", "add", "brave_search", "python", "find-it", "n\u00e4me", "f"]


class Conversations:
    """Random variables of a whole template."""

    def __init__(self, rng):
        self.rng = rng
        self.has_parts = self.has_calls = False  # of this conversation: many templates raise at either

    def maybe(self, chance):
        return self.rng.random() < chance

    def spaces(self):
        return "".join(self.rng.choices(SPACES, k=self.rng.choice([0, 0, 1, 2, 4])))

    def text(self):
        """White space only at the ends, so that trimming has something to do; marks within."""
        if self.maybe(0.06):
            return self.rng.choice(["", "", " ", "\n\n"])
        words = [self.rng.choice(HOSTILE) for _ in range(self.rng.randrange(1, 5))]
        for _ in range(self.rng.randrange(1, 4)):
            words.insert(self.rng.randrange(len(words) + 1), self.rng.choice(MARKS))
        return self.spaces() + "".join(word + \
                           self.rng.choice(["", "", self.spaces()]) for word in words) + self.spaces()

    def name(self):
        return self.rng.choice(NAMES) + self.rng.choice(MARKS)

    def value(self, depth=2):
        kind = self.rng.randrange(9 if depth else 7)
        if kind == 7:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(4))]
        if kind == 8:
            return {self.name(): self.value(depth - 1) for _ in range(self.rng.randrange(4))}
        return [self.rng.choice([0, 1, -7, 1234567, 9007199254740993]),
                self.rng.choice([0.0, 0.5, -0.0, 1.0, 1e22, 1e-7, 0.1, 123456.789, 1e16, 5e-324]),
                self.maybe(0.5), None, self.text(), self.text(), ""][kind]

    def schema(self, depth=2):
        if depth == 0 or self.maybe(0.5):
            schema = {"type": self.rng.choice(["string", "integer", "number", "boolean"]), "description": self.text()}
            if self.maybe(0.3):
                schema["enum"] = [self.text() for _ in range(self.rng.randrange(1, 3))]
            if self.maybe(0.2):
                schema["default"] = self.value(1)
        elif self.maybe(0.4):
            schema = {"type": "array", "items": self.schema(depth - 1)}
        else:
            schema = self.object_schema(depth)
        return self.shuffled(schema)

    def object_schema(self, depth):
        names = {self.name(): self.schema(depth - 1) for _ in range(self.rng.randrange(4))}
        return {"type": "object", "properties": names, "required": list(names)[:self.rng.randrange(3)]}

    def shuffled(self, value):
        keys = list(value)
        if self.maybe(0.4):
            self.rng.shuffle(keys)
        return {key: value[key] for key in keys}

    def tool(self):
        function = self.shuffled({"name": self.name(), "description": self.text(), "parameters": self.object_schema(2)})
        return {"type": "function", "function": function}

    def tool_call(self):
        arguments = {self.name(): self.value() for _ in range(self.rng.randrange(4))}
        if self.maybe(0.15):
            arguments = json.dumps(arguments)
        call = {"id": "call1234" + self.rng.choice(MARKS), "type": "function",
                "function": self.shuffled({"name": self.name(), "arguments": arguments})}
        return self.shuffled(call)

    def content(self):
        if self.has_parts and self.maybe(0.5):
            return [{"type": "text", "text": self.text()} for _ in range(self.rng.randrange(1, 3))]
        return self.text()

    def assistant(self):
        message = {"role": "assistant", "content": self.content()}
        if self.maybe(0.15):
            message["reasoning_content"] = self.text()
        if self.maybe(0.1):
            message["content"] = f"<think>{self.text()}</think>{self.text()}"
        return message

    def calls_and_results(self):
        calls = [self.tool_call() for _ in range(self.rng.choice([1, 1, 1, 2, 3]))]
        message = {"role": "assistant", "tool_calls": calls}
        if self.maybe(0.7):
            message["content"] = self.rng.choice([None, "", self.text()])
        results = [{"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"],
                    "content": self.content()} for call in calls]
        return [self.shuffled(message)] + [self.shuffled(result) for result in results]

    def messages(self):
        self.has_parts, self.has_calls = self.maybe(0.1), self.maybe(0.35)
        if self.maybe(0.06):
            return [{"role": self.rng.choice(["user", "assistant", "tool", "system", "nobody"]),
                     "content": self.rng.choice([self.content(), self.content(), None])} for _ in range(self.rng.randrange(4))]
        messages = [{"role": "system", "content": self.content()}] if self.maybe(0.4) else []
        for _ in range(self.rng.randrange(1, 4)):
            messages.append(self.shuffled({"role": "user", "content": self.content()}))
            if self.has_calls and self.maybe(0.6):
                messages.extend(self.calls_and_results())
            messages.append(self.assistant())
        if self.maybe(0.7):
            messages.pop()
        return messages

    def variables(self):
        optional = {"tools": (0.35, lambda: [self.tool() for _ in range(self.rng.randrange(4))] or None),
                    "documents": (0.15, lambda: [{"title": self.text(), "text": self.text()} for _ in range(2)]),
                    "date_string": (0.3, lambda: "26 Jul 2024" + self.rng.choice(MARKS)),
                    "enable_thinking": (0.3, lambda: self.maybe(0.5)), "functions": (0.3, self.text),
                    "datetime": (0.3, self.text), "reasoning_effort": (0.2, lambda: "high"), "thinking": (0.1, lambda: self.maybe(0.5)),
                    "tools_in_user_message": (0.3, lambda: self.maybe(0.5)),
                    "builtin_tools": (0.1, lambda: ["brave_search", "code_interpreter"])}
        variables = {"messages": self.messages()}
        if self.maybe(0.9):
            variables["add_generation_prompt"] = self.maybe(0.5)
        for name, (chance, make) in optional.items():
            if self.maybe(chance):
                variables[name] = make()
        return variables

    def request(self, path):
        return {"name": path.name, "template": path.read_bytes().decode(), "variables": self.variables(),
                "markup": self.rng.choice(MARKUPS), "now": self.rng.choice([1700000000, 0, 1709210096, 4102444799]), "is_marked": True}
