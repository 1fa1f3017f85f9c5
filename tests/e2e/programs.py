"""Servers and gateways for end-to-end tests in Python, which are run as TEST.py LOCKSTEP MODEL."""
import ctypes
import json
import signal
import subprocess
import sys
import threading
import time

LOCKSTEP, MODEL = sys.argv[1:3]
PATIENCE_SECONDS = 60


class Program:
    """A command with --json that runs until it is told to stop, at the latest with this test; its events are read as they come."""

    def __init__(self, *arguments):
        end_with_parent = lambda: ctypes.CDLL(None).prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG
        self.process = subprocess.Popen([LOCKSTEP, *arguments, "--json"], stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
        self.events = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def wait_event(self, name):
        for _ in range(PATIENCE_SECONDS * 20):
            for event in self.events:
                if event["event"] == name:
                    return event
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {name} among {self.events}")

    def stop(self):
        return self.end(signal.SIGINT)

    def kill(self):
        self.end(signal.SIGKILL)

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        self.reader.join()
        self.process.stdout.close()
        return code


def serve(*flags, listen="127.0.0.1:0", model=MODEL):
    server = Program("serve", model, "--tp", "2", "--threads-per-rank", "1", "--listen", listen, *flags)
    return server, server.wait_event("ready")["address"]


def status(address):
    return json.loads(subprocess.check_output([LOCKSTEP, "status", "--json", "--server", address]))
