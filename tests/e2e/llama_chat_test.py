"""What llama_chat_test.sh runs."""
import json
import pathlib
import random
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent / "chat_templates"))
import tokenizers
from conversations import Conversations
from oracle import rendered
from programs import LOCKSTEP, PATIENCE_SECONDS, serve

SHARED, THINKER = pathlib.Path(sys.argv[3]), sys.argv[4]
END_OF_THOUGHT = "128014"
NUM_CONVERSATIONS = 150  # of each template
MARKERS = ["<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>", "<|eom_id|>", "<|python_tag|>"]


def as_openai_says_it(variables):
    """A request, in which arguments of calls are JSON in strings."""
    body = {"messages": json.loads(json.dumps(variables["messages"])), "max_tokens": 1,
            "add_generation_prompt": variables.get("add_generation_prompt", True)}
    for message in body["messages"]:
        for call in message.get("tool_calls", []):
            if not isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    if variables.get("tools"):
        body["tools"] = variables["tools"]
    if "date_string" in variables:
        body["chat_template_kwargs"] = {"date_string": variables["date_string"]}
    return body


def as_templates_see_it(body):
    """What vLLM and transformers pass of such a request: texts for contents, objects for arguments."""
    variables = {"add_generation_prompt": body["add_generation_prompt"], **body.get("chat_template_kwargs", {})}
    if "tools" in body:
        variables["tools"] = body["tools"]
    variables["messages"] = []
    for message in json.loads(json.dumps(body["messages"])):
        content = message.get("content") or ""
        message["content"] = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        variables["messages"].append(message)
    return variables


def without_markers(value):
    text = json.dumps(value)
    for marker in MARKERS:
        text = text.replace(marker, "")
    return json.loads(text)


class LlamaChat(unittest.TestCase):
    def check(self, name):
        path = SHARED / "chat_templates" / name
        tokenizer = tokenizers.Tokenizer.from_file(str(SHARED / "tokenizers/llama3/tokenizer.json"))
        count = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
        server, _ = serve("--chat-template", str(path), "--http-listen", "127.0.0.1:0")
        url = server.wait_event("gateway")["url"] + "/v1/chat/completions"
        make = Conversations(random.Random(3))
        num_checked = num_with_markers = num_refused = 0
        while num_checked < NUM_CONVERSATIONS:
            request = make.request(path)
            body = as_openai_says_it(request["variables"])
            request.update(variables=as_templates_see_it(body), markup={"bos_token": "<|begin_of_text|>"}, now=int(time.time()))
            text, error = rendered(request)
            post = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(post, timeout=PATIENCE_SECONDS) as answer:
                    num_tokens = json.load(answer)["usage"]["prompt_tokens"]
            except urllib.error.HTTPError as refused:
                message = json.load(refused)["error"]["message"]
                self.assertEqual(refused.code, 400, message)
                # What the template refuses, or what OpenAI's API has no place for: an unknown role, no content.
                self.assertTrue(error is not None or "must be system" in message or "is missing" in message or "at least one message" in message, message)
                num_refused += 1
                continue
            self.assertIsNone(error)
            num_checked += 1
            if rendered(dict(request, variables=without_markers(request["variables"])))[0] == text:
                self.assertEqual(num_tokens, count(text), text)
            else:  # as text a marker is several tokens
                self.assertGreater(num_tokens, count(text), text)
                num_with_markers += 1
        print(f"{name}: {num_checked} conversations, {num_with_markers} of them with markers in what people say; {num_refused} refused")
        self.assertGreater(num_with_markers, 10)
        self.assertEqual(server.stop(), 0)

    def test_an_answer_is_continued_where_transformers_does(self):
        path = SHARED / "chat_templates/meta-llama-Llama-3.1-8B-Instruct.jinja"
        tokenizer = tokenizers.Tokenizer.from_file(str(SHARED / "tokenizers/llama3/tokenizer.json"))
        server, _ = serve("--chat-template", str(path), "--http-listen", "127.0.0.1:0")
        url = server.wait_event("gateway")["url"] + "/v1/chat/completions"
        for content in ("Sure: ", "  One,\n", "```json\n{\"a\": ", "é", ""):
            messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": content}]
            body = {"messages": messages, "max_tokens": 1, "continue_final_message": True}
            post = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(post, timeout=PATIENCE_SECONDS) as answer:
                num_tokens = json.load(answer)["usage"]["prompt_tokens"]
            # As its apply_chat_template finds the place.
            messages[-1]["content"] += "@@ "
            text, error = rendered({"template": path.read_text(), "now": int(time.time()), "markup": {"bos_token": "<|begin_of_text|>"},
                                    "variables": {"messages": messages, "add_generation_prompt": False}})
            self.assertIsNone(error)
            before, after = text.rsplit("@@", 1)
            expected = before if after.startswith(" ") else before.rstrip()
            self.assertEqual(num_tokens, len(tokenizer.encode(expected, add_special_tokens=False).ids), expected)
        self.assertEqual(server.stop(), 0)

    def test_llama_3_1(self):
        self.check("meta-llama-Llama-3.1-8B-Instruct.jinja")

    def test_llama_3_2(self):
        self.check("meta-llama-Llama-3.2-3B-Instruct.jinja")


class Thinker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server, cls.address = serve("--http-listen", "127.0.0.1:0", model=THINKER)
        cls.url = cls.server.wait_event("gateway")["url"] + "/v1/chat/completions"

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def ask(self, **options):
        body = {"messages": [{"role": "user", "content": "Is 17 a prime?"}], **options}
        post = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(post, timeout=PATIENCE_SECONDS) as answer:
            if not options.get("stream"):
                return json.load(answer)
            lines = [line.decode().removeprefix("data: ") for line in answer if line.startswith(b"data: {")]
        message = {}
        for line in lines:
            for choice in json.loads(line)["choices"]:
                for name, said in choice["delta"].items():
                    message[name] = message.get(name, type(said)()) + said
        return message

    def sometimes(self, seed):
        """Which ends a thought after some tokens."""
        return {"seed": seed, "temperature": 1, "top_k": 40, "max_tokens": 30, "logit_bias": {END_OF_THOUGHT: 2}}

    def test_a_thought_that_does_not_end_has_no_answer(self):
        answer = self.ask(max_tokens=12)
        message = answer["choices"][0]["message"]
        self.assertIsNone(message["content"])
        self.assertTrue(message["reasoning_content"])
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        again = self.ask(max_tokens=2, messages=[{"role": "user", "content": "Is it?"}, message, {"role": "user", "content": "Go on."}])
        self.assertEqual(again["usage"]["completion_tokens"], 2)

    def test_streams_say_what_whole_answers_say(self):
        num_answers = 0
        for seed in range(8):
            whole = self.ask(**self.sometimes(seed))["choices"][0]["message"]
            text = self.ask(**self.sometimes(seed), separate_reasoning=False)["choices"][0]["message"]["content"]
            streamed = self.ask(**self.sometimes(seed), stream=True)
            for name in ("content", "reasoning_content"):
                self.assertEqual(streamed.get(name) or "", whole.get(name) or "", seed)
            thought, marker, answer = text.partition("</think>")
            self.assertEqual(whole.get("reasoning_content") or "", thought.strip("\n"))
            self.assertEqual(whole["content"] or "", answer.lstrip("\n"))
            self.assertNotIn("reasoning_content", self.ask(**self.sometimes(seed), include_reasoning=False)["choices"][0]["message"])
            num_answers += bool(marker)
        self.assertGreater(num_answers, 4)

    def test_constraints_hold_behind_thoughts(self):
        lengths = []
        for seed in range(8):
            answer = self.ask(**self.sometimes(seed), structured_outputs={"choice": ["yes", "no"]})
            choice = answer["choices"][0]
            if choice["finish_reason"] == "length":
                self.assertIsNone(choice["message"]["content"])
                continue
            self.assertIn(choice["message"]["content"], ("yes", "no"))
            lengths.append(len(choice["message"].get("reasoning_content", "")))
        self.assertGreater(len(lengths), 4)
        self.assertGreater(max(lengths), 10)

    def test_calls_that_must_be_made_follow_thoughts(self):
        tools = [{"type": "function", "function": {"name": name}} for name in ("add", "at")]
        num_calls = 0
        for seed in range(8):
            options = dict(self.sometimes(seed), max_tokens=60, tools=tools, tool_choice="required")
            apart, together = (self.ask(**options, separate_reasoning=apart)["choices"][0] for apart in (True, False))
            streamed = self.ask(**options, stream=True)
            if apart["finish_reason"] == "length":
                continue
            num_calls += 1
            self.assertEqual(apart["finish_reason"], "tool_calls")
            self.assertIn(apart["message"]["tool_calls"][0]["function"], [{"name": name, "arguments": "{}"} for name in ("add", "at")])
            self.assertIsNone(apart["message"]["content"])
            without_ids = lambda calls: [{name: call[name] for name in ("type", "function")} for call in calls]
            self.assertEqual(without_ids(together["message"]["tool_calls"]), without_ids(apart["message"]["tool_calls"]))
            self.assertTrue(together["message"]["content"].rstrip("\n").endswith("</think>"), together)
            self.assertEqual(without_ids(streamed["tool_calls"]), without_ids(apart["message"]["tool_calls"]))
        self.assertGreater(num_calls, 4)

    def test_models_that_do_not_think_are_constrained_at_once(self):
        answer = self.ask(temperature=0, structured_outputs={"choice": ["yes", "no"]}, chat_template_kwargs={"never_thinks": True})["choices"][0]
        self.assertIn(answer["message"]["content"], ("yes", "no"))
        self.assertNotIn("reasoning_content", answer["message"])

    def test_our_own_client_leaves_room_for_thoughts(self):
        for choices in (("--choice", "yes", "--choice", "no"), ("--regex", "yes|no")):
            output = subprocess.check_output([LOCKSTEP, "generate", "--server", self.address, "--chat", "--temperature", "0", "--logit-bias",
                                              f"{END_OF_THOUGHT}:100", "--max-tokens", "20", *choices, "Is it?"], text=True)
            self.assertRegex(output.strip(), r"^</think>\n{0,4}(yes|no)$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
