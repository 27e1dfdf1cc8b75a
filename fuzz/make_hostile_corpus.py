#!/usr/bin/env python3
"""Writes the seed inputs of the targets whose peer is hostile (fuzz_client, fuzz_owner, fuzz_host, fuzz_keys): an honest peer, and some of whose words dice have
made wrong. Usage: python3 fuzz/make_hostile_corpus.py (from anywhere). Deterministic."""
import pathlib
import random
import struct

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
GET, PUT, OTHER, SESSION = (lambda how: 1 + 4 * how), (lambda how: 2 + 4 * how), (lambda how: 3 + 4 * how), (lambda how: 4 + 4 * how)


def noise(dice, length, density):
    """Mostly zeros, which are an honest peer's."""
    return bytes(dice.randrange(1, 256) if dice.random() < density else 0 for _ in range(length))


def client(dice):
    calls = {"gets": [GET(how) for how in range(4)], "puts": [PUT(how) for how in range(8)], "others": [OTHER(how) for how in range(8)], "sessions": [SESSION(0)] * 2}
    for name, words in calls.items():
        for flags in (0, 1, 3):
            yield f"{name}_{flags}", bytes([flags]) + bytes(words).ljust(8, b"\0") + bytes(64)
            yield f"{name}_{flags}_wrong", bytes([flags]) + bytes(words).ljust(8, b"\0") + noise(dice, 400, 0.03)


def owner(dice):
    yield "honest", bytes(60)
    for order in range(13):
        yield f"order_{order}", bytes([0]) + bytes(40) + bytes([order] + [0] * 12) * 4
    for number in range(6):
        yield f"life_{number}", bytes([dice.choice((0, 3, 0x81))]) + bytes(40) + b"".join(bytes([dice.randrange(13)]) + noise(dice, 12, 0.1) for _ in range(24))


def host(dice):
    for what in (0, 1):
        for how in (0, 1, 2, 4, 8, 0x40, 0x80, 0x10):
            yield f"{('initiator', 'owner')[what]}_{how}", bytes([what, how]) + b"".join(bytes([dice.randrange(40)]) + struct.pack("<Q", dice.choice((0, 1, 1 << 63))) for _ in range(3))
    yield "owner_honest", bytes([1, 0])


def keys(dice):
    secret = "0123456789abcdef" * 4
    yield "file", b"\0# a comment\nme " + secret.encode() + b" read,write,node,admin # all\n\nyou " + secret.encode() + b" read team-a\n"
    yield "file_bad", b"\0me " + secret[:-1].encode() + b" read\n"
    for name, text in (("bearer", f"Bearer me:{secret}\nhttp://a\na"), ("basic", "Basic bWU6\nhttps://a:1\na:1"), ("nobody", "Bearer you:1\n\n")):
        yield f"http_{name}", b"\1" + text.encode()
    for number, name in ((2, "gate"), (3, "asked"), (4, "caller")):
        yield name, bytes([number]) + noise(dice, 60, 0.05)
        yield f"{name}_honest", bytes([number]) + bytes(8)


def main():
    for target in (client, owner, host, keys):
        folder = CORPUS / f"fuzz_{target.__name__}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in target(random.Random(target.__name__)):
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
