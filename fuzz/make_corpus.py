#!/usr/bin/env python3
"""Writes the seed inputs of fuzz_wire from the tables of src/store/wire/rpc.def: one file per message, so that a new message gets its seed by
running this again. Usage: python3 fuzz/make_corpus.py (from anywhere). Deterministic."""
import pathlib
import random
import re
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "fuzz" / "corpus" / "fuzz_wire"
EDGES = (0, 1, 7, 0x80, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFFFFFFFFFF)


def tables():
    """(records: name -> [(kind, field)], messages: [(name, number, head, lists)])"""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "src/store/wire/rpc.def").read_text(), flags=re.S).replace("\\\n", " ")
    records = {}
    for name, body in re.findall(r"#define MC_RECORD_(\w+)\([^)]*\)(.*)", text):
        records[name] = re.findall(r"(U8|U16|U32|U64|I32|ID|BYTES)\((\w+)\)", body)
    body = re.search(r"#define MC_MESSAGES\(X\)(.*)", text).group(1)
    messages = []
    for entry in re.findall(r"X\(([^)]*)\)", body):
        name, number, head, *lists = [word.strip() for word in entry.split(",")]
        messages.append((name, int(number), head, [word for word in lists if word != "none"]))
    return records, messages


def field(kind, rng):
    if kind == "ID":
        return rng.randbytes(16)
    if kind == "BYTES":
        value = rng.choice((b"", b"k", b"127.0.0.1:12345", b"@mooncake", bytes(range(200)), b"key-" + rng.randbytes(8)))
        return struct.pack("<H", len(value)) + value
    size = {"U8": 1, "U16": 2, "U32": 4, "U64": 8, "I32": 4}[kind]
    return (rng.choice(EDGES) % (1 << (8 * size))).to_bytes(size, "little")


def record(fields, rng, more=b""):
    body = b"".join(field(kind, rng) for kind, _ in fields) + more
    return struct.pack("<H", len(body)) + body


def frame(records, number, head, lists, count, rng, more=b""):
    body = record(records[head], rng, more)
    for name in lists:
        body += struct.pack("<I", count) + b"".join(record(records[name], rng, more) for _ in range(count))
    return struct.pack("<IHHQ", len(body), number, 0, rng.getrandbits(32)) + body


def main():
    records, messages = tables()
    rng = random.Random(1)
    CORPUS.mkdir(parents=True, exist_ok=True)
    stream = b""
    for name, number, head, lists in messages:
        whole = frame(records, number, head, lists, 3, rng)
        (CORPUS / name.lower()).write_bytes(whole)
        stream += frame(records, number, head, lists, 0, rng)
    first = messages[0]
    get = next(message for message in messages if message[0] == "GET")
    (CORPUS / "empty_lists").write_bytes(stream)
    (CORPUS / "newer_peer").write_bytes(frame(records, *get[1:], 2, rng, more=b"unknown field"))
    (CORPUS / "bare_body").write_bytes(struct.pack("<H", get[1]) + frame(records, *get[1:], 2, rng)[16:])
    (CORPUS / "cut_short").write_bytes(frame(records, *first[1:], 0, rng)[:-3])
    (CORPUS / "http").write_bytes(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    (CORPUS / "too_long").write_bytes(struct.pack("<IHHQ", 0xFFFFFFFF, get[1], 0, 1) + b"body")
    (CORPUS / "nothing").write_bytes(b"")


if __name__ == "__main__":
    main()
