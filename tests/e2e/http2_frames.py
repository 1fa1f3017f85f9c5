"""HTTP/2 frames and connections by hand (RFC 9113, RFC 7541), for clients that gRPC's own library would not be. Standard library alone."""
import socket
import struct
import threading

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = struct.pack(">I", 8)
HEALTH = "/grpc.health.v1.Health/Check"
GENERATE = "/lockstep.v1.Generation/Generate"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def integer(value, bits, first=0):
    """An HPACK integer (RFC 7541, section 5.1)."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes([first | value])
    out, value = [first | limit], value - limit
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + [value])


def header(name, value, index=False):
    """A literal header field, added to the dynamic table with index."""
    name, value = name.encode(), value.encode() if isinstance(value, str) else value
    return (b"\x40" if index else b"\x00") + integer(len(name), 7) + name + integer(len(value), 7) + value


def request_headers(path, **replaced):
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers",
              "content-type": "application/grpc"}
    fields.update({name.replace("pseudo_", ":"): value for name, value in replaced.items()})
    return b"".join(header(name, value) for name, value in fields.items())


class Peer:
    """One HTTP/2 connection that reads and forgets, unless asked."""

    def __init__(self, port, tls=None, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.buffer = b""
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data):
        self.socket.sendall(data)

    def frames(self):
        while True:
            while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
                more = self.socket.recv(1 << 16)
                if not more:
                    return
                self.buffer += more
            size = int.from_bytes(self.buffer[:3], "big")
            kind, flags, stream = struct.unpack(">BBI", self.buffer[3:9])
            payload, self.buffer = self.buffer[9:9 + size], self.buffer[9 + size:]
            if kind == SETTINGS and not flags & ACK:
                self.send(frame(SETTINGS, ACK, 0))
            if kind == PING and not flags & ACK:
                self.send(frame(PING, ACK, 0, payload))
            yield kind, flags, stream, payload

    def drain_in_background(self):
        def drain():
            try:
                while self.socket.recv(1 << 16):
                    pass
            except OSError:
                pass
        threading.Thread(target=drain, daemon=True).start()

    def close(self):
        self.socket.close()
