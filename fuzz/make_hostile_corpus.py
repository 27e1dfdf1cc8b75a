#!/usr/bin/env python3
"""Writes the seed inputs of the targets whose peer is hostile (fuzz_ask, fuzz_client, fuzz_console, fuzz_election, fuzz_owner, fuzz_host, fuzz_keys): an honest
peer, and some of whose words dice have made wrong. Usage: python3 fuzz/make_hostile_corpus.py (from anywhere). Deterministic."""
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


def console(dice):
    """One that a true master gave, or as near as a person writes it; a zero ends each answer."""
    node = ('{"name":"n","state":"MOUNTED","objects":3,"used_bytes":4096,"capacity_bytes":1048576,"largest_free_bytes":9,"heard_ms":300,"disks":2,"disks_ill":1}')
    event = '{"time_ms":1764000000000,"kind":"node","level":"warning","text":"a \\u001b[31m node","count":2}'
    overview = ('{"data":{"role":"leader","state":"SERVING","leader_address":"0.0.0.0:50051","build":"1","uptime_seconds":999999,"epoch":7,"is_ready":true,"memory":{"capacity_bytes":9,'
                '"used_bytes":3,"populated_bytes":8},"objects":12345,"segments":{"mounted":1,"suspect":2},"disks":{"mounted":1,"slow":1},"per_second":{"lookups":2.5,"lookup_hits":1,'
                '"put_bytes":1e300,"evicted_bytes":-5},"hit_ratio_lately":0.5,"drains":[{"status":"RUNNING","segments":["n"],"succeeded_units":1,"total_units":3}]}}')
    job = '{"job_id":"j","status":3,"status_name":"SUCCEEDED","segments":["n"],"succeeded_units":5,"total_units":3,"migrated_bytes":7}'
    key = '{"data":{"key":"k","is_there":true,"bytes":5,"replicas":[{"node":"n","address":"a","is_on_disk":true,"state":"COMPLETE"}]}}'
    gone = '{"data":{"key":"k","is_there":false,"reason":"evicted","least_seconds_ago":1e20,"most_seconds_ago":2}}'
    history = '{"series":{"lookups":[0,2,5],"lookup_hits":[0,1,4],"put_bytes":[0,1e308],"evicted_objects":[5,1],"used":[1,2],"capacity":[4,4]}}'
    disks = '{"segment_name":"n","directory":"/d","status":"OK","health":"slow","objects":3}'
    detail = f'{{"segments":[{{"segment_name":"n","te_endpoint":"127.0.0.1:1","size_human":"1 GB","status":"OK","objects":1}}],"disks":[{disks}],"disks_off":[{{"node":"n","disks":2}}]}}'
    metrics = "# HELP\nmaster_total_capacity_bytes 1e300\nmaster_allocated_bytes 5\nmaster_active_clients 2\nmaster_key_count 7\n"
    said = {"status": (0, overview), "nodes": (1, f'{{"nodes":[{node},{node}],"found":2}}'), "keys": (2, '{"keys":[{"key":"k\\u009b","bytes":7}],"cursor":"9"}', '{"keys":[],"cursor":""}'),
            "key": (3, key), "gone": (3, gone), "events": (4, f'{{"events":[{event}],"last":5}}', f'{{"events":[],"last":6}}'), "drain": (5, '{"job_id":"j"}', job.replace(":3,", ":1,", 1), job),
            "undrain": (6, '{"ok":true}'), "top": (7, overview, history, f'{{"nodes":[{node}],"found":5}}', f'{{"events":[{event}]}}'),
            "doctor": (8, '{"view_version":3,"metadata_port":8080}', metrics, detail), "refused": (0, '!{"error_message":"SEGMENT_NOT_FOUND"}')}
    for name, (command, *answers) in said.items():
        for how in (0, 1, 3, 4):
            yield f"{name}_{how}", bytes([command, how]) + b"".join(one.encode() + b"\0" for one in answers)
    yield "jobs", bytes([5, 4]) + f'{{"jobs":[{job}]}}'.encode()
    for command, answer in ((0, b'{"data":"\xc2\x9b\x7f"}'), (1, b'{"nodes":["\xc2\x9b"]}'), (3, b'{"data":{"is_there":true,"key":"\xc2\x9b"}}'), (5, b'{"job_id":"\x7f\xc2\x80"}'), (6, b"\x1b[31m")):
        yield f"orders_{command}", bytes([command, 1]) + answer
    for name, text in (("delete", b"\xc2\x7f"), ("twice", b"\xc2\xc2\x9b"), ("escape", b"\xc2\\u009b")):
        yield f"orders_{name}", bytes([0, 1]) + b'!{"error_message":"' + text + b'"}'
    yield "no_metrics", bytes([8, 0]) + b'{"view_version":3}\0\0'
    for name, numbers in (("far", "[-1e308,1e308,1e308]"), ("near", "[0,1e308,0]"), ("none", "[0,0,-1]")):
        yield f"curves_{name}", bytes([7, 0]) + f'{{"data":{{}}}}\0{{"series":{{"lookups":[0,1,2],"lookup_hits":{numbers},"put_bytes":{numbers},"used":{numbers},"capacity":[1,1e-300,1]}}}}'.encode()
    yield "devices", bytes([8, 2]) + b'[{"name":"mlx5_0","lid":0,"gid":[]}]\0'


def ask(dice):
    """Kinds of what is said: 0 a document, 1 that it cut, 2 a frame, 3 bytes, 4 nothing, 5 bytes without an end, 6 a document of the original."""
    def say(kind, data=b""):
        return bytes([kind]) + struct.pack("<H", len(data)) + data
    status = say(3, bytes(8))
    meta = say(3, b'{"ip_or_host_name":"127.0.0.1","rpc_port":1}')
    for where in (0, 1):
        known = say(0) if where == 1 else say(0, b"\0\0{")
        for name, calls, said in (("write", (0,), known + status * 4), ("read", (1,), known + say(3, bytes(3000)) * 4), ("settle", (2,), known + (meta if where else b"") + say(1) + known),
                                  ("settle_other", (2, 5), known + say(1, struct.pack("<HB", 30, 57)) + known * 3), ("open", (0, 0, 2, 0), known + say(5) + known * 2 + say(5, bytes(4)) + known), ("original", (0, 0, 1, 0), say(6) + say(5) + say(6) * 3 + say(5, bytes(4)) + say(6)), ("probe", (3, 4), say(2, b"{}") * 3), ("ask", (5, 6, 5), known * 4),
                                  ("wrong", (0, 2, 3, 5), b"".join(say(dice.randrange(5), dice.randbytes(dice.randrange(40))) for _ in range(12)))):
            yield f"{name}_{where}", bytes([where]) + bytes(calls).ljust(6, b"\xff") + said


def main():
    for target in (ask, client, console, election, owner, host, keys):
        folder = CORPUS / f"fuzz_{target.__name__}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in target(random.Random(target.__name__)):
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
