#!/usr/bin/env python3
"""Writes the seed inputs of fuzz_serve: conversations of a peer with an owner (see fuzz_serve.c for the two bytes before them).
Usage: python3 fuzz/make_serve_corpus.py (from anywhere). Deterministic."""
import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus" / "fuzz_serve"
ATTACH, COMMIT, WRITE, READ, PING = 60, 62, 63, 64, 67
UNIX, SAID_HELLO, WINDOW, CLEAR, EPOCH, TAGS = 1, 2, 4, 8, 16, 32


def record(layout="", *values):
    body = struct.pack("<" + layout, *values)
    return struct.pack("<H", len(body)) + body


def frame(number, body, identity=7):
    return struct.pack("<IHHQ", len(body), number, 0, identity) + body


def write(slot, generation, offset, payload, length=None):
    head = record("IQQQ", slot, generation, offset, len(payload) if length is None else length)
    return frame(WRITE, head) + payload


def read(slot, generation, offset, length, table=0):
    return frame(READ, record("IBQQQ", slot, table, generation, offset, length))


def commit(*items):
    listed = b"".join(record("IIQQQQQHB", slot, 1, generation, offset, length, 2, 3, 4, 16) for slot, generation, offset, length in items)
    return frame(COMMIT, record() + struct.pack("<I", len(items)) + listed)


def main():
    rng = random.Random(1)
    ping, attach = frame(PING, record()), frame(ATTACH, record())
    hello = frame(1, record("IHHBQ16sQQH", 0x4E4F4F4D, 1, 1, 3, 0, bytes(range(16)), 1, 5, 0) + b"")
    small, large = rng.randbytes(300), rng.randbytes(5000)
    seeds = {
        "ping": (SAID_HELLO, 10, ping * 3),
        "attach": (SAID_HELLO | UNIX, 5, ping + attach + ping),
        "attach_by_tcp": (SAID_HELLO, 5, attach),
        "hello_bad_nonce": (0, 3, hello + ping),
        "no_hello": (0, 200, ping),
        "put": (SAID_HELLO, 50, write(9, 8, 307200, small) + commit((9, 8, 307200, 300)) + read(9, 8, 0, 300)),
        "put_by_window": (SAID_HELLO | WINDOW, 90, write(9, 8, 307200, large) + commit((9, 8, 307200, 5000)) + read(9, 8, 1, 4999, 1)),
        "write_stale": (SAID_HELLO | WINDOW, 30, write(1, 5, 0, small) + ping),
        "write_outside": (SAID_HELLO, 30, write(9, 8, 1 << 62, small)),
        "write_cleared": (SAID_HELLO | CLEAR | WINDOW, 30, write(1, 6, 0, large) + ping),
        "write_old_epoch": (SAID_HELLO | EPOCH | WINDOW, 30, write(9, 8, 307200, large) + commit((9, 8, 307200, 5000)) + ping),
        "attach_twice": (SAID_HELLO | UNIX | EPOCH, 30, attach + attach + commit((9, 8, 307200, 300)) + attach),
        "write_unfinished": (SAID_HELLO, 30, write(9, 8, 0, small, 1000)),
        "write_nothing": (SAID_HELLO, 30, write(9, 8, 0, b"") + ping),
        "read_large": (SAID_HELLO, 20, read(1, 5, 0, 200000, 1) + read(1, 5, 199999, 1) + read(2, 5, 0, 100)),
        "read_cleared": (SAID_HELLO | CLEAR, 20, read(1, 5, 0, 200000, 1) + ping * 9),
        "read_outside": (SAID_HELLO, 20, read(1, 5, 200000, 1) + read(1, 5, 1 << 63, 1 << 63) + read(0xFFFFFFFF, 5, 0, 1)),
        "read_many": (SAID_HELLO, 255, read(2, 5, 0, 100) * 300 + read(1, 5, 0, 20000) * 20),
        "commits": (SAID_HELLO | UNIX, 40, commit(*[(i, 9, 64 * i, 64) for i in range(20)]) + commit()),
        "commit_again": (SAID_HELLO, 40, commit((5, 9, 0, 64), (5, 9, 0, 64), (5, 8, 0, 64), (0xFFFFFFFF, 1, 0, 1))),
        "commit_cut_short": (SAID_HELLO, 40, frame(COMMIT, record() + struct.pack("<I", 2) + record("I", 1))),
        "too_long": (SAID_HELLO, 40, struct.pack("<IHHQ", (256 << 10) + 1, COMMIT, 0, 1)),
        "unknown": (SAID_HELLO, 40, frame(9999, record())),
        "byte_by_byte": (SAID_HELLO, 0, ping + write(9, 8, 64, b"abc") + commit((9, 8, 64, 3)) + read(9, 8, 0, 3)),
    }
    for name in ("put", "put_by_window", "write_cleared", "read_large", "read_cleared", "commits", "commit_again", "attach_twice"):
        flags, piece, stream = seeds[name]
        seeds[f"{name}_without_a_tag"] = (flags | TAGS, piece, stream)
    CORPUS.mkdir(parents=True, exist_ok=True)
    for name, (flags, piece, stream) in seeds.items():
        (CORPUS / name).write_bytes(bytes((flags, piece)) + stream)


if __name__ == "__main__":
    main()
