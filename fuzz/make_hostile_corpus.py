#!/usr/bin/env python3
"""Writes the seed inputs of the targets whose peer is hostile (fuzz_client, fuzz_election, fuzz_owner, fuzz_host, fuzz_keys): an honest peer, and some of whose words dice have
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


def election(dice):
    calls = bytes([0, 1, 2, 3, 9, 15, 21, 2, 5, 5, 5, 4])
    for number, place in ((0, "etcd"), (1, "lease")):
        for login in (0, 1):
            yield f"{place}_honest_{login}", bytes([number, login]) + bytes(200)
            for life in range(6):
                yield f"{place}_{life}_{login}", bytes([number, login]) + b"".join(bytes([one]) + bytes([1]) + noise(dice, 28, 0.04 * life) for one in dice.sample(calls, 8))
    for login in (0, 1):
        yield f"quotas_etcd_{login}", bytes([2, login]) + bytes(20) + bytes(range(1, 12)) + bytes(60)
        yield f"quotas_etcd_wrong_{login}", bytes([2, login]) + noise(dice, 120, 0.1)
        yield f"leader_etcd_{login}", bytes([4, login]) + bytes(20)
        yield f"leader_etcd_wrong_{login}", bytes([4, login, 1]) + noise(dice, 40, 0.2)
    yield "login_token_lines", bytes([0, 1, 0, 1, 14, 4]) + b"a\r\nb" + bytes(40)
    for length in (127, 128):  # of a claim, which has 128 with its zero
        yield f"etcd_claim_{length}", bytes([0, 0, 0, 1, 0, 0, 0, 0, 0, 14, length]) + b"c" * length + bytes(40)
    yield "leader_lease", bytes([5, 0, 1]) + bytes(40)
    quotas = "version: 1\n\ntenants:\n  - name: \"team-a\"\n    quota: 10GB\n    objects: 100000\n    guaranteed: 2GB\n    guaranteed_objects: 1000\n"
    for name, text in (("whole", quotas), ("two", quotas + "  - {name: b, quota: 5}\n"), ("twice", quotas + "  - {name: team-a, quota: 5}\n"), ("none", "version: 1\ntenants: []\n"),
                       ("alias", "version: 1\ntenants:\n  - &a {name: b, quota: 9223372036854775807B}\n  - *a\n"), ("json", '{"version": 1, "tenants": [{"name": "a\\"b", "quota": "1TB"}]}'),
                       ("much", "version: 1\ntenants:\n  - {name: b, quota: 8388608TB}\n"), ("bad", "version: 1\ntenants: {a: [\n")):
        yield f"quotas_{name}", b"\3\0" + text.encode()
    yield "login", b"\6\0# etcd\n username = root\r\npassword=p \"q\\=r\n"
    yield "login_bad", b"\6\0username=root\nwho=me\n"


def main():
    for target in (client, election, owner, host, keys):
        folder = CORPUS / f"fuzz_{target.__name__}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in target(random.Random(target.__name__)):
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
