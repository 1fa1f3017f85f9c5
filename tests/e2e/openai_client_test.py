"""What openai_client_test.sh runs: every answer beside what `lockstep generate` says of the same request."""
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
import uuid
from typing import Literal, Optional, Union

import openai
import pydantic
from programs import LOCKSTEP, MODEL, PATIENCE_SECONDS, Program, serve, status

TOKEN = "a-token-of-sixteen-or-more"
QUESTION = "Mary is in the kitchen. Tom is in the garden. Mary took the red ball. Mary went to the garden. Where is the red ball?"
PROMPT = f"<|user|>{QUESTION}<|end|><|assistant|>"
SCHEMA = {"type": "object", "required": ["who", "certain", "places"], "additionalProperties": False,
          "properties": {"who": {"enum": ["Mary", "Tom"]}, "certain": {"type": "boolean"},
                         "places": {"type": "array", "items": {"enum": ["kitchen", "garden"]}, "minItems": 1, "maxItems": 2}}}
TAKE = {"type": "object", "required": ["thing", "by"], "additionalProperties": False, "$defs": {"thing": {"enum": ["red ball", "blue cup"]}},
        "properties": {"thing": {"$ref": "#/$defs/thing"}, "by": {"enum": ["Mary", "Tom"]}}}
TOOLS = [{"type": "function", "function": {"name": "wait"}}, {"type": "function", "function": {"name": "take", "parameters": TAKE}}]


class Part(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)
    kind: Literal["gift"]
    parts: list["Part"] = pydantic.Field(max_length=1)


class Order(pydantic.BaseModel):
    number: uuid.UUID
    when: datetime.datetime
    who: Optional[Literal["Mary", "Tom"]]
    price: float
    parts: list[Part] = pydantic.Field(min_length=1, max_length=2)
    remark: Union[int, list[bool], None] = None


class Gateway(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server, cls.address = serve("--speculative-tokens", "6")
        cls.gateway = Program("gateway", "--server", cls.address, "--listen", "127.0.0.1:0")
        cls.url = cls.gateway.wait_event("listening")["url"]
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        codes = cls.gateway.stop(), cls.server.stop()
        assert codes == (0, 0), codes

    def generate(self, prompt, *flags):
        """Our own client's outputs."""
        command = [LOCKSTEP, "generate", "--server", self.address, "--json", "--parse-special-tokens", *flags, prompt]
        return json.loads(subprocess.check_output(command))["outputs"]

    def chat(self, **options):
        return self.client.chat.completions.create(model=self.model, messages=[{"role": "user", "content": QUESTION}], **options)

    def test_models(self):
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("another")

    def test_predictions_change_no_answer(self):
        plain = self.chat(temperature=0)
        before = status(self.address)["status"]
        predicted = self.chat(temperature=0, prediction={"type": "content", "content": plain.choices[0].message.content})
        self.assertEqual(predicted.choices[0].message.content, plain.choices[0].message.content)
        after = status(self.address)["status"]
        steps, accepted = (int(after[name]) - int(before.get(name, 0)) for name in ("num_steps", "draft_tokens_accepted"))
        self.assertGreater(accepted, 4)
        told = predicted.usage.completion_tokens_details.accepted_prediction_tokens
        self.assertTrue(4 < told <= accepted)  # not of what other answers said
        self.assertLess(steps, plain.usage.completion_tokens)
        with self.assertRaises(openai.BadRequestError):
            self.chat(prediction={"type": "content"})

    def test_completions_are_those_of_our_own_client(self):
        options = dict(model=self.model, max_tokens=24, temperature=0.9, seed=5, n=3)
        own = self.generate(PROMPT, "--max-tokens", "24", "--temperature", "0.9", "--seed", "5", "--n", "3")
        whole = self.client.completions.create(prompt=PROMPT, **options)
        self.assertEqual([choice.text for choice in whole.choices], [output["text"] for output in own])
        self.assertEqual([choice.finish_reason for choice in whole.choices], [output["finish_reason"] for output in own])
        self.assertEqual(whole.usage.completion_tokens, sum(len(output["token_ids"]) for output in own))
        texts = [""] * 3
        for chunk in self.client.completions.create(prompt=PROMPT, stream=True, **options):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual(texts, [output["text"] for output in own])

    def test_several_prompts(self):
        answer = self.client.completions.create(model=self.model, prompt=["Mary is", "Tom is", "Mary is"], max_tokens=5, temperature=0)
        texts = [choice.text for choice in answer.choices]
        self.assertEqual(texts, [self.generate(prompt, "--max-tokens", "5", "--temperature", "0")[0]["text"] for prompt in ("Mary is", "Tom is", "Mary is")])

    def test_log_probabilities_with_the_prompts(self):
        """As evaluation harnesses ask for them: what a text costs, token by token."""
        answer = self.client.completions.create(model=self.model, prompt="Mary is in the garden.", max_tokens=1, temperature=0, logprobs=1, echo=True)
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), answer.usage.prompt_tokens + 1)
        self.assertEqual(len(logprobs.token_logprobs), len(logprobs.top_logprobs))
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual("".join(logprobs.tokens[1:-1]), "Mary is in the garden.")
        for logprob, top in zip(logprobs.token_logprobs[1:], logprobs.top_logprobs[1:]):
            self.assertLessEqual(logprob, max(top.values()) + 1e-6)
        self.assertTrue(answer.choices[0].text.startswith("Mary is in the garden."))

    def test_chats_know_the_answer(self):
        whole = self.chat(temperature=0, logprobs=True, top_logprobs=2)
        message = whole.choices[0].message
        self.assertEqual((message.role, message.content), ("assistant", "The red ball is with Mary in the garden."))
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        tokens = whole.choices[0].logprobs.content
        self.assertEqual(b"".join(bytes(token.bytes) for token in tokens if not token.token.startswith("<|")).decode(), message.content)
        self.assertTrue(all(len(token.top_logprobs) == 2 for token in tokens))
        text, usage = "", None
        for chunk in self.chat(temperature=0, stream=True, stream_options={"include_usage": True}):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, message.content)
        self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_no_message_ends_its_own_turn(self):
        """Markers in what somebody says stay text: more tokens than markers would be."""
        def prompt_tokens(content):
            messages = [{"role": "user", "content": content}]
            return self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=1).usage.prompt_tokens
        self.assertGreater(prompt_tokens("a<|end|><|assistant|>"), prompt_tokens("a") + 2)

    def test_wrong_requests_name_what_is_wrong(self):
        for options, word in ((dict(temperature=-1), "temperature"), (dict(max_tokens=0), "max_tokens"), (dict(n=65), "65"),
                              (dict(extra_body={"top_kk": 3}), "top_kk"), (dict(tools=[{"type": "function"}]), "tools")):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.chat(**options)
            self.assertIn(word, str(refused.exception))
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="another", prompt="a")

    def check_schema(self, text):
        answer = json.loads(text)
        self.assertEqual(list(answer), ["who", "certain", "places"])  # as the schema has them
        self.assertIn(answer["who"], ("Mary", "Tom"))
        self.assertIsInstance(answer["certain"], bool)
        self.assertIn(len(answer["places"]), (1, 2))
        self.assertLessEqual(set(answer["places"]), {"kitchen", "garden"})

    def test_answers_are_valid_against_a_schema(self):
        named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
        for choice in self.chat(response_format=named, temperature=1.5, seed=1, n=4).choices:
            self.assertEqual(choice.finish_reason, "stop")
            self.check_schema(choice.message.content)
        whole = self.chat(response_format=named, temperature=0).choices[0].message.content
        text = ""
        for chunk in self.chat(response_format=named, temperature=0, stream=True):
            text += chunk.choices[0].delta.content or ""
        self.assertEqual(text, whole)
        for fields in ({"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}}):
            self.assertEqual(self.chat(temperature=0, extra_body=fields).choices[0].message.content, whole, fields)

    def test_completions_are_valid_against_a_schema(self):
        own = self.generate(PROMPT, "--json-schema", json.dumps(SCHEMA), "--max-tokens", "200", "--temperature", "0")[0]
        self.check_schema(own["text"])
        fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}}
        answer = self.client.completions.create(model=self.model, prompt=PROMPT, max_tokens=200, temperature=0, extra_body=fields)
        self.assertEqual((answer.choices[0].text, answer.choices[0].finish_reason), (own["text"], "stop"))

    def test_answers_are_what_pydantic_describes(self):
        num_read = 0
        for seed in range(4):
            try:
                answer = self.client.chat.completions.parse(model=self.model, messages=[{"role": "user", "content": QUESTION}],
                                                            response_format=Order, temperature=1, seed=seed, max_tokens=900)
            except openai.LengthFinishReasonError:
                continue  # parts in parts, of which there is no end
            self.assertIsInstance(answer.choices[0].message.parsed, Order)
            num_read += 1
        self.assertGreater(num_read, 0)

    def test_answers_are_objects(self):
        for choice in self.chat(response_format={"type": "json_object"}, temperature=1, seed=2, n=8, max_tokens=150).choices:
            self.assertTrue(choice.message.content.lstrip().startswith("{"), choice.message.content)
            if choice.finish_reason == "stop":  # else max_tokens has cut it
                self.assertIsInstance(json.loads(choice.message.content), dict)

    def test_answers_match_a_pattern(self):
        pattern = r"(Mary|Tom) has [0-9]{1,3} (ball|cup)s?\."
        for fields in ({"guided_regex": pattern}, {"structured_outputs": {"regex": pattern}}):
            for choice in self.chat(temperature=1.5, seed=3, n=4, extra_body=fields).choices:
                self.assertRegex(choice.message.content, f"\\A{pattern}\\Z")
                self.assertEqual(choice.finish_reason, "stop")

    def test_answers_are_one_of_the_choices(self):
        choices = ["in the kitchen", "in the garden", "with Tom"]
        flags = [flag for choice in choices for flag in ("--choice", choice)]
        own = self.generate(PROMPT, *flags, "--max-tokens", "50", "--temperature", "0")[0]["text"]
        self.assertIn(own, choices)
        for fields in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
            answer = self.client.completions.create(model=self.model, prompt=PROMPT, max_tokens=50, temperature=0, extra_body=fields)
            self.assertEqual((answer.choices[0].text, answer.choices[0].finish_reason), (own, "stop"))

    def check_call(self, function):
        arguments = json.loads(function.arguments)
        if function.name == "wait":
            self.assertEqual(arguments, {})
        else:
            self.assertEqual(function.name, "take")
            self.assertEqual(list(arguments), ["thing", "by"])
            self.assertIn(arguments["thing"], ("red ball", "blue cup"))
            self.assertIn(arguments["by"], ("Mary", "Tom"))

    def test_calls_that_must_be_made(self):
        for choice in self.chat(tools=TOOLS, tool_choice="required", temperature=1.5, seed=4, n=4).choices:
            self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
            self.assertEqual(len(choice.message.tool_calls), 1)
            self.check_call(choice.message.tool_calls[0].function)
        for name in ("wait", "take"):
            options = dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}}, temperature=0)
            function = self.chat(**options).choices[0].message.tool_calls[0].function
            self.assertEqual(function.name, name)
            self.check_call(function)
            chunks = [chunk.choices[0] for chunk in self.chat(stream=True, **options)]
            calls = [call.function for chunk in chunks for call in chunk.delta.tool_calls or []]
            self.assertEqual([(call.name, call.arguments) for call in calls], [(name, function.arguments)])
            self.assertEqual(chunks[-1].finish_reason, "tool_calls")
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "wait"}}]}}
        message = self.chat(tools=TOOLS, tool_choice=allowed, response_format={"type": "json_object"}, temperature=0).choices[0].message
        self.assertEqual(message.tool_calls[0].function.name, "wait")
        self.assertRegex(message.tool_calls[0].id, "^call_[0-9A-Za-z]{24}$")
        # As clients keep it and send it back.
        messages = [{"role": "user", "content": QUESTION}, {**message.model_dump(), "provider_specific_fields": {"refusal": None}},
                    {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}, {"role": "user", "content": QUESTION}]
        self.assertTrue(self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=1).choices)
        answer = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}}}
        kinds = set()
        for choice in self.chat(tools=TOOLS, response_format=answer, temperature=1, n=32, seed=1, max_tokens=400).choices:
            if choice.finish_reason == "length":
                continue
            kinds.add(choice.finish_reason)
            if choice.finish_reason == "stop":
                self.assertIsInstance(json.loads(choice.message.content)["age"], int)
        self.assertEqual(kinds, {"stop", "tool_calls"})
        cut = self.chat(tools=TOOLS, tool_choice="required", temperature=0, max_tokens=2).choices[0]
        self.assertEqual((cut.finish_reason, cut.message.tool_calls), ("length", None))

    def test_wrong_constraints_name_what_is_wrong(self):
        unknown_type = {"type": "object", "properties": {"age": {"type": "years"}}}
        required = dict(tools=TOOLS, tool_choice="required")
        for options, word in ((dict(response_format={"type": "xml"}), "response_format.type"),
                              (dict(extra_body={"guided_json": unknown_type}), "#/properties/age"), (dict(extra_body={"guided_regex": "("}), "regex"),
                              (dict(extra_body={"guided_choice": ["a"], "guided_regex": "a"}), "second constraint"),
                              (dict(extra_body={"guided_grammar": "root ::= 'a'"}), "guided_grammar"),
                              (dict(extra_body={"guided_json": {}}, **required), "second constraint"), (dict(tool_choice="required"), "no tools"),
                              (dict(response_format={"type": "json_object"}, extra_body={"ignore_eos": True}), "ignore_eos"),
                              (dict(response_format={"type": "json_object"}, extra_body={"min_tokens": 5}), "min_tokens")):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.chat(**options)
            self.assertIn(word, str(refused.exception))

    def test_a_client_that_goes_stops_the_computing(self):
        before = int(status(self.address)["status"]["requests_aborted"])
        stream = self.client.completions.create(model=self.model, prompt="Mary is", max_tokens=1900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        for _ in range(PATIENCE_SECONDS * 10):
            if int(status(self.address)["status"]["requests_aborted"]) > before:
                return
            time.sleep(0.1)
        self.fail("the request goes on")

    def test_a_lost_rank_is_a_pause(self):
        options = dict(model=self.model, prompt="Mary is", max_tokens=400, temperature=0, extra_body={"ignore_eos": True})
        expected = self.client.completions.create(**options).choices[0].text
        text, killed = "", False
        for chunk in self.client.completions.create(stream=True, **options):
            text += chunk.choices[0].text
            if len(text) > 20 and not killed:
                killed = True
                os.kill(int(status(self.address)["status"]["ranks"][1]["pid"]), signal.SIGKILL)
        self.assertTrue(killed)
        self.assertEqual(text, expected)


class Journal(unittest.TestCase):
    def test_a_stream_outlives_its_server(self):
        with tempfile.TemporaryDirectory() as directory:
            flags = ("--journal", directory + "/journal")
            server, address = serve(*flags)
            gateway = Program("gateway", "--server", address, "--listen", "127.0.0.1:0")
            client = openai.OpenAI(base_url=gateway.wait_event("listening")["url"] + "/v1", api_key="none", max_retries=0)
            options = dict(model="", prompt="Mary is", max_tokens=600, temperature=0, n=2, extra_body={"ignore_eos": True})
            expected = [choice.text for choice in client.completions.create(**options).choices]
            texts, ends, killed = [""] * 2, [0] * 2, False
            for chunk in client.completions.create(stream=True, **options):
                choice = chunk.choices[0]
                texts[choice.index] += choice.text
                ends[choice.index] += choice.finish_reason is not None
                if len(texts[0]) > 20 and not killed:
                    killed = True
                    server.kill()
                    server, _ = serve(*flags, listen=address)
            self.assertTrue(killed)
            self.assertEqual(texts, expected)
            self.assertEqual(ends, [1, 1])
            self.assertEqual((gateway.stop(), server.stop()), (0, 0))


class Tokens(unittest.TestCase):
    def test_the_clients_token_goes_to_the_server_which_may_come_and_go(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(TOKEN + "\n")
            file.flush()
            server, address = serve("--api-token-file", file.name)
            gateway = Program("gateway", "--server", address, "--listen", "127.0.0.1:0")
            url = gateway.wait_event("listening")["url"] + "/v1"
            ask = lambda key: openai.OpenAI(base_url=url, api_key=key, max_retries=0).completions.create(model="", prompt="a", max_tokens=1)
            ask(TOKEN)
            with self.assertRaises(openai.AuthenticationError):
                ask("wrong" + TOKEN)
            self.assertEqual(server.stop(), 0)
            with self.assertRaises(openai.InternalServerError) as away:
                ask(TOKEN)
            self.assertEqual(away.exception.status_code, 503)
            server, _ = serve("--api-token-file", file.name, listen=address)
            for _ in range(PATIENCE_SECONDS):
                try:
                    ask(TOKEN)
                    break
                except openai.InternalServerError:
                    time.sleep(1)  # gRPC dials again after a pause
            ask(TOKEN)
            self.assertEqual((gateway.stop(), server.stop()), (0, 0))


class GatewayOfServe(unittest.TestCase):
    """serve --http-listen: the gateway is a child of the server."""

    def start(self, *flags):
        server, address = serve("--http-listen", "127.0.0.1:0", *flags)
        event = server.wait_event("gateway")
        return server, address, event, openai.OpenAI(base_url=event["url"] + "/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_SECONDS)

    def code_of(self, url, headers):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE_SECONDS) as answer:
                return answer.status
        except urllib.error.HTTPError as refused:
            return refused.code

    def test_running_answers_end_before_it_does(self):
        server, address, gateway, client = self.start()
        options = dict(model="", prompt="Mary is", max_tokens=900, temperature=0, extra_body={"ignore_eos": True})
        expected = client.completions.create(**options).choices[0].text
        stream = iter(client.completions.create(stream=True, **options))
        text = next(stream).choices[0].text
        server.process.send_signal(signal.SIGTERM)
        text += "".join(chunk.choices[0].text for chunk in stream)
        self.assertEqual(text, expected)
        self.assertEqual(server.end(0), 0)  # by the signal it got
        with self.assertRaises(ProcessLookupError):
            os.kill(gateway["pid"], 0)

    def test_a_killed_one_is_back_where_it_was(self):
        server, address, gateway, client = self.start()
        stream = iter(client.completions.create(model="", prompt="Mary is", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}))
        next(stream)
        os.kill(gateway["pid"], signal.SIGKILL)
        with self.assertRaises(Exception):  # of the SDK's HTTP library, which is not always the same one
            for _ in stream:
                pass
        for _ in range(PATIENCE_SECONDS * 20):
            if any(event["event"] == "gateway" and event["pid"] != gateway["pid"] for event in server.events):
                break
            time.sleep(0.05)
        self.assertEqual([event["url"] for event in server.events if event["event"] == "gateway"], [gateway["url"]] * 2)
        self.assertIn("signal 9", next(event["message"] for event in server.events if event["event"] == "warning"))
        client.completions.create(model="", prompt="Mary is", max_tokens=1)
        self.assertEqual(int(status(address)["status"]["replicas"][0]["num_losses"]), 0)
        self.assertEqual(server.stop(), 0)

    def test_the_clients_own_token_counts(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(TOKEN + "\n")
            file.flush()
            os.environ["LOCKSTEP_TOKEN_FILE"] = file.name  # the operator's, as a client
            try:
                server, _, gateway, _ = self.start("--api-token-file", file.name)
            finally:
                del os.environ["LOCKSTEP_TOKEN_FILE"]
            for headers, code in (({"Authorization": "Bearer " + TOKEN}, 200), ({"Authorization": "Bearer wrong" + TOKEN}, 401), ({}, 401)):
                self.assertEqual(self.code_of(gateway["url"] + "/v1/models", headers), code, headers)
            self.assertEqual(server.stop(), 0)

    def test_a_port_that_is_taken_ends_the_start(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = "127.0.0.1:%d" % taken.getsockname()[1]
            started = subprocess.run([LOCKSTEP, "serve", MODEL, "--listen", "127.0.0.1:0", "--http-listen", address], capture_output=True, text=True)
        self.assertEqual(started.returncode, 1)
        self.assertIn(f"the gateway: cannot listen on {address}: Address already in use", started.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
