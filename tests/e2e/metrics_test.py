"""What metrics_test.sh runs."""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from programs import LOCKSTEP, PATIENCE_SECONDS, Program, serve, status

TOKEN = "a-token-of-sixteen-or-more"
# By the number of its outputs and the tokens of each.
REQUESTS = [(1, 7), (3, 20), (1, 1)]


def fetch(url, token=None, method="GET"):
    headers = {"Authorization": "Bearer " + token} if token else {}
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=PATIENCE_SECONDS)


class Scrape:
    """Samples by name and labels. The parser refuses what is no metric; histograms are checked here."""

    def __init__(self, url, token=None):
        with fetch(url, token) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
            text = answer.read().decode()
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        assert text.count("# TYPE") == len(self.families), "a family appears twice"
        self.samples = {}
        for family in self.families.values():
            assert family.documentation, family
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, key
                self.samples[key] = sample.value
            if family.type == "histogram":
                self.check_histogram(family)

    def check_histogram(self, family):
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name == family.name + "_bucket"]
        assert buckets == sorted(buckets) and [count for _, count in buckets] == sorted(count for _, count in buckets), buckets
        assert buckets[-1] == (float("inf"), self[family.name + "_count"]), buckets

    def __getitem__(self, name):
        return self.samples[name, ()]

    def of(self, name, **labels):
        return self.samples[name, tuple(sorted(labels.items()))]


class Metrics(unittest.TestCase):
    def generate(self, address, num_outputs, num_tokens, *flags):
        command = [LOCKSTEP, "generate", "--server", address, "--quiet", "--ignore-eos", "--n", str(num_outputs), "--max-tokens", str(num_tokens)]
        subprocess.check_output([*command, *flags, "Mary is in the kitchen."])

    def test_what_was_done_is_counted(self):
        server, address = serve("--metrics-listen", "127.0.0.1:0")
        url = server.wait_event("metrics")["url"]
        gateway = Program("gateway", "--server", address, "--listen", "127.0.0.1:0")
        before = Scrape(url)
        self.assertEqual(before["lockstep_requests_accepted_total"], 0)
        self.assertEqual(before["lockstep_time_to_first_token_seconds_count"], 0)
        for num_outputs, num_tokens in REQUESTS:
            self.generate(address, num_outputs, num_tokens)
        after = Scrape(url)
        num_outputs = sum(n for n, _ in REQUESTS)
        num_tokens = sum(n * tokens for n, tokens in REQUESTS)
        for name, value in {
            "lockstep_requests_accepted_total": len(REQUESTS),
            "lockstep_requests_finished_total": len(REQUESTS),
            "lockstep_requests_aborted_total": 0,
            "lockstep_output_tokens_total": num_tokens,
            "lockstep_request_output_tokens_sum": num_tokens,
            "lockstep_request_output_tokens_count": len(REQUESTS),
            "lockstep_request_seconds_count": len(REQUESTS),
            "lockstep_request_queue_seconds_count": len(REQUESTS),
            "lockstep_time_to_first_token_seconds_count": num_outputs,
            "lockstep_inter_token_seconds_count": num_tokens - num_outputs,
            "lockstep_sequences_running": 0,
            "lockstep_kv_cache_blocks_in_use": 0,
        }.items():
            self.assertEqual(after[name], value, name)
        self.assertEqual(after["lockstep_step_seconds_count"], after["lockstep_steps_total"])
        self.assertLess(after["lockstep_request_queue_seconds_sum"], after["lockstep_time_to_first_token_seconds_sum"])
        self.assertLess(after["lockstep_time_to_first_token_seconds_sum"], num_outputs * after["lockstep_uptime_seconds"])
        # Outputs of one request do not share a part of a block.
        prompt = after.of("lockstep_prompt_tokens_total", source="computed") + after.of("lockstep_prompt_tokens_total", source="cached")
        self.assertEqual(prompt, num_outputs / len(REQUESTS) * after["lockstep_request_prompt_tokens_sum"])

        via_gateway = Scrape(gateway.wait_event("listening")["url"] + "/metrics")
        self.assertEqual(via_gateway["lockstep_gateway_server_up"], 1)
        for key, value in after.samples.items():
            if not key[0].startswith(("lockstep_uptime", "lockstep_rank_last_seen")):
                self.assertEqual(via_gateway.samples[key], value, key)
        self.assertEqual((gateway.stop(), server.stop()), (0, 0))

    def test_alerts_are_about_what_is_there(self):
        server, address = serve()
        gateway = Program("gateway", "--server", address, "--listen", "127.0.0.1:0")
        scrape = Scrape(gateway.wait_event("listening")["url"] + "/metrics")
        with open(os.path.join(os.path.dirname(__file__), "../../deploy/prometheus/lockstep.rules.yml")) as rules:
            names = set(re.findall(r"\blockstep_\w+", rules.read()))
        self.assertGreater(len(names), 8)
        self.assertEqual(names - {name for name, _ in scrape.samples}, set())
        self.assertEqual((gateway.stop(), server.stop()), (0, 0))

    def test_a_loss_shows(self):
        server, address = serve("--metrics-listen", "127.0.0.1:0")
        url = server.wait_event("metrics")["url"]
        self.assertEqual(Scrape(url).of("lockstep_replica_losses_total", replica="0"), 0)
        os.kill(int(status(address)["status"]["ranks"][1]["pid"]), signal.SIGKILL)
        for _ in range(PATIENCE_SECONDS * 20):
            scrape = Scrape(url)  # is answered meanwhile
            if scrape.of("lockstep_replica_losses_total", replica="0") == 1 and scrape.of("lockstep_replica_serving", replica="0") == 1:
                break
            time.sleep(0.05)
        states = [scrape.of("lockstep_state", state=state) for state in ("starting", "serving", "recovering", "draining", "failed")]
        self.assertEqual(states, [0, 1, 0, 0, 0])
        self.assertEqual(len(scrape.families["lockstep_rank_last_seen_seconds"].samples), 2)
        self.assertEqual(server.stop(), 0)

    def test_tokens_paths_and_methods(self):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(TOKEN + "\n")
            file.flush()
            server, _ = serve("--metrics-listen", "127.0.0.1:0", "--api-token-file", file.name)
            url = server.wait_event("metrics")["url"]
            self.assertEqual(Scrape(url, TOKEN)["lockstep_requests_accepted_total"], 0)
            with fetch(url, TOKEN, "HEAD") as answer:
                self.assertEqual(answer.read(), b"")
            for wrong, code in (((url, None), 401), ((url, "wrong" + TOKEN), 401), ((url + "x", TOKEN), 404), ((url, TOKEN, "POST"), 405)):
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    fetch(*wrong)
                self.assertEqual(refused.exception.code, code)
                refused.exception.close()
            self.assertEqual(server.stop(), 0)

    def test_others_may_not_read_in_clear(self):
        serve_in_clear = subprocess.run([LOCKSTEP, "serve", sys.argv[2], "--metrics-listen", "0.0.0.0:0"], capture_output=True, text=True)
        self.assertNotEqual(serve_in_clear.returncode, 0)
        self.assertIn("other hosts can reach --metrics-listen 0.0.0.0:0", serve_in_clear.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
