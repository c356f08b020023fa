"""Lists and sets the tunables of a process, by the documentation of `dormouse_abi::message` alone.

oracle.py DIRECTORY PID                   prints name, type's number, value, minimum, maximum of each
oracle.py DIRECTORY PID NAME VALUE…       sets, and prints what was set, or the error
"""

import glob
import socket
import struct
import sys

FLOATS = (10, 11)


def number(kind, bits):
    packed = struct.pack("<Q", bits)
    return struct.unpack("<d" if kind in FLOATS else "<q" if 6 <= kind <= 9 else "<Q", packed)[0]


class Body:
    def __init__(self, data):
        self.data = data

    def take(self, form):
        size = struct.calcsize("<" + form)
        head, self.data = self.data[:size], self.data[size:]
        values = struct.unpack("<" + form, head)
        return values[0] if len(values) == 1 else values

    def text(self):
        size = self.take("H")
        head, self.data = self.data[:size], self.data[size:]
        return head.decode()


def text(value):
    return struct.pack("<H", len(value.encode())) + value.encode()


def ask(path, message, body):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(path)
        preamble = b"dormouse" + struct.pack("<II", 7, 3)
        peer.sendall(preamble + struct.pack("<BI", message, len(body)) + body)
        data = b"".join(iter(lambda: peer.recv(65536), b""))
    assert data[:16] == preamble
    kind, size = struct.unpack("<BI", data[16:21])
    assert len(data) == 21 + size
    return kind, Body(data[21:])


directory, pid, *words = sys.argv[1:]
[path] = glob.glob(f"{directory}/dormouse/{pid}.*.sock")
if not words:
    kind, body = ask(path, 6, b"")
    assert kind == 3
    writer, reason, _, _, count = body.text(), body.text(), *body.take("III")
    for _ in range(count):
        name, _, _ = body.text(), body.text(), body.text()
        kind, bits, least, greatest, _, _ = body.take("BQQQII")
        print(name, kind, number(kind, bits), number(kind, least), number(kind, greatest))
else:
    pairs = list(zip(words[::2], words[1::2]))
    kind, body = ask(path, 7, struct.pack("<I", len(pairs)) + b"".join(text(n) + text(v) for n, v in pairs))
    if kind == 6:
        sys.exit(body.text())
    for _ in range(body.take("I")):
        name, (kind, former, value) = body.text(), body.take("BQQ")
        print(name, number(kind, former), number(kind, value))
assert body.data == b""
