"""What a router asks a master: how long a prefix of its keys is stored."""
import json

from cluster import Master
from test_misses import exist
from test_openapi import ask
from wire import FakeOwner


def prefix(master, keys, query=""):
    status, body, _ = ask(master.metrics_port, "POST", "/api/v1/longest_prefix" + query, keys if isinstance(keys, str) else json.dumps(keys))
    return json.loads(body)["data"] if status == 200 else status


def test_longest_prefix():
    with Master("--client_ttl=600") as master:  # the owner has no heartbeats
        owner = FakeOwner(master.port, "127.0.0.1:9")
        keys = [f"block {number} \"é" for number in range(700)]  # more than the core looks at in one question
        assert owner.put([key.encode() for key in keys], 4096) == [0] * 700
        assert prefix(master, keys) == {"keys": 700, "longest_matched": 700, "cpu": 700, "disk": 0}
        assert prefix(master, {"keys": keys[:3], "other": 1})["longest_matched"] == 3
        assert prefix(master, [])["longest_matched"] == 0 and prefix(master, ["none", keys[0]])["longest_matched"] == 0
        for number in (699, 512, 511, 256, 255, 1, 0):
            assert owner.remove([keys[number].encode()]) == [0]
            assert prefix(master, keys) == {"keys": 700, "longest_matched": number, "cpu": number, "disk": 0}
        assert prefix(master, keys[2:])["longest_matched"] == 253
        assert prefix(master, keys[2:5], "?tenant_id=other")["longest_matched"] == 0
        for bad in ("", "7", "[1]", '["a"', '["a", {}]', '{"keys": 1}', "{}", '[""]', json.dumps(["k" * 1025]), json.dumps([keys[0]]) + "x"):
            assert prefix(master, bad) == 400, bad
        assert prefix(master, keys[2:5], "?tenant_id=_no_name") == 400
        before = master.metrics()["mooncake_lookups_total"]
        assert prefix(master, ["k" * 1024] * 3)["longest_matched"] == 0
        assert master.metrics()["mooncake_lookups_total"] == before, "it counts as no use"
        assert exist(owner, [keys[5].encode()]) == [1]
        owner.close()
