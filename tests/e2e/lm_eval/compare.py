"""What lm_eval_test.sh runs: three kinds of tasks over the demo model's own questions, by lm-eval's backend for transformers, and by those for
OpenAI's API in front of a gateway; sample for sample."""
import glob
import json
import os
import subprocess
import sys
import tempfile

from programs import MODEL, Program, serve

QUESTIONS_OF_A_KIND = 20
# Both compute in f32, in another order; a log-likelihood is a sum over up to a few dozen tokens, of a rolling one over hundreds.
TOLERANCE = 0.01

CHOICES = """
task: choices
output_type: multiple_choice
doc_to_text: "<|user|>{{question}}<|end|><|assistant|>"
doc_to_target: 0
doc_to_choice: "{{choices}}"
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
ROLLING = """
task: rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
"""
CHATS = """
task: chats
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["<|end|>"], max_gen_toks: 64, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
OF_ALL = """
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
metadata: {version: 1}
"""


def write_tasks(directory):
    by_kind = {}
    with open(os.path.join(MODEL, "questions.jsonl")) as questions:
        for question in map(json.loads, questions):
            if len(question["messages"]) == 1:
                by_kind.setdefault(question["task"], []).append((question["messages"][0]["content"], question["answer"]))
    data = os.path.join(directory, "questions.jsonl")
    with open(data, "w") as file:
        for kind in by_kind.values():
            for i, (question, answer) in enumerate(kind[:QUESTIONS_OF_A_KIND]):
                wrong = [kind[(i + step) % len(kind)][1] for step in (1, 2, 3)]
                choices = list(dict.fromkeys([answer] + wrong))
                file.write(json.dumps({"question": question, "answer": answer, "choices": choices}) + "\n")
    for name, task in (("choices", CHOICES), ("rolling", ROLLING), ("chats", CHATS)):
        with open(os.path.join(directory, name + ".yaml"), "w") as file:
            file.write(task + OF_ALL % data)


def evaluate(directory, backend, arguments, tasks, *flags):
    """Results by task, and samples by task and document."""
    out = tempfile.mkdtemp(dir=directory)
    command = [sys.executable, "-m", "lm_eval", "--model", backend, "--model_args", arguments, "--include_path", directory, "--tasks", tasks]
    done = subprocess.run([*command, "--output_path", out, "--log_samples", *flags], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-4000:])
    with open(glob.glob(out + "/**/results*.json", recursive=True)[0]) as file:
        results = json.load(file)["results"]
    samples = {}
    for task in tasks.split(","):
        with open(glob.glob(f"{out}/**/samples_{task}_*.jsonl", recursive=True)[0]) as file:
            samples[task] = {sample["doc_id"]: sample["filtered_resps"] for sample in map(json.loads, file)}
    return results, samples


def flat(values):
    for value in values if isinstance(values, list) else [values]:
        if isinstance(value, list):
            yield from flat(value)
        else:
            yield value


def compare(task, theirs, ours):
    """The largest difference between log-likelihoods; everything else must be equal."""
    assert theirs.keys() == ours.keys(), task
    largest = 0.0
    for doc in theirs:
        pairs = list(zip(flat(theirs[doc]), flat(ours[doc]), strict=True))
        for their, our in pairs:
            if task == "chats" or their in ("True", "False"):
                assert their == our, (task, doc, their, our)
            else:
                largest = max(largest, abs(float(their) - float(our)))
    assert largest <= TOLERANCE, (task, largest)
    return largest


def main():
    with tempfile.TemporaryDirectory() as directory:
        write_tasks(directory)
        hf = f"pretrained={MODEL},dtype=float32"
        results, theirs = evaluate(directory, "hf", hf, "choices,rolling", "--device", "cpu", "--batch_size", "8")
        chat_results, their_chats = evaluate(directory, "hf", hf, "chats", "--device", "cpu", "--batch_size", "8", "--apply_chat_template")

        server, address = serve("--dtype", "f32")
        gateway = Program("gateway", "--server", address, "--listen", "127.0.0.1:0")
        url = gateway.wait_event("listening")["url"]
        name = gateway.wait_event("listening")["model"]
        common = f"model={name},num_concurrent=8,max_retries=1"
        completions = f"{common},base_url={url}/v1/completions,tokenizer={MODEL},tokenized_requests=True,add_bos_token=True,max_length=2048"
        own_results, ours = evaluate(directory, "local-completions", completions, "choices,rolling")
        chats = f"{common},base_url={url}/v1/chat/completions"
        own_chat_results, our_chats = evaluate(directory, "local-chat-completions", chats, "chats", "--apply_chat_template")
        assert (gateway.stop(), server.stop()) == (0, 0)

    for task, metric, expected, own in (
        ("choices", "acc,none", results, own_results),
        ("rolling", "word_perplexity,none", results, own_results),
        ("chats", "exact_match,none", chat_results, own_chat_results),
    ):
        largest = compare(task, (their_chats if task == "chats" else theirs)[task], (our_chats if task == "chats" else ours)[task])
        print(f"{task:8} {len((our_chats if task == 'chats' else ours)[task])} documents: {metric.split(',')[0]} {own[task][metric]:.4f}, "
              f"transformers {expected[task][metric]:.4f}; largest difference of a log-likelihood {largest:.2g}")


main()
