"""Why keys are not there, and what more memory would find, as a master's HTTP port, metrics and page say it."""
import json

from cluster import Master
from wire import EXIST, EXIST_REPLY, FakeOwner, data, record, records


def exist(owner, keys):
    reply = owner.caller.call(EXIST, EXIST_REPLY, record() + records([data(key) for key in keys])).record()
    return list(reply[-len(keys):])


def why(master, key):
    status, body = master.get(f"/api/v1/misses/why?key={key}")
    assert status == 200, body
    return json.loads(body)["data"]


def misses(master, query=""):
    status, body = master.get("/api/v1/misses" + query)
    assert status == 200, body
    return json.loads(body)["data"]


def test_reasons():
    with Master() as master:
        owner = FakeOwner(master.port, "127.0.0.1:9")
        assert misses(master)["curve"]["hit_ratio"] is None and misses(master)["advice"] == []
        assert owner.put([b"a"], 4096) == [0]
        assert owner.put([b"b"], 1 << 46) == [-200]
        assert exist(owner, [b"a", b"b", b"c", b"a"]) == [1, 0, 0, 1]
        told, values = misses(master), master.metrics()
        assert told["lookups"] == values["mooncake_lookups_total"] == 4 and told["hits"] == values["mooncake_lookup_hits_total"] == 2
        assert {reason: count for reason, count in told["misses"].items() if count > 0} == {"put_refused": 1, "never_stored": 1}
        for reason, count in told["misses"].items():
            assert values[f'mooncake_misses_total{{reason="{reason}"}}'] == count
        assert why(master, "a")["is_there"] and why(master, "a")["reason"] is None
        assert why(master, "c")["reason"] == "never_stored" and "seconds_ago" not in why(master, "c")
        gone = why(master, "b")
        assert gone["reason"] == "put_refused" and not gone["is_there"]
        assert 0 <= gone["seconds_ago"][0] <= gone["seconds_ago"][1] <= gone["remembered_seconds"] < 60
        owner.close()


def test_curve():
    with Master() as master:
        owner = FakeOwner(master.port, "127.0.0.1:9", capacity=64 << 20)
        keys = [b"k%d" % number for number in range(100)]
        for _ in range(3):
            found = exist(owner, keys)
            owner.put([key for key, there in zip(keys, found) if not there] or [b"other"], 32 << 10)
        curve, values = misses(master)["curve"], master.metrics()
        assert curve["capacity_bytes"] == 64 << 20 and curve["sample"] == 1
        assert [point["bytes"] for point in curve["points"]] == sorted(point["bytes"] for point in curve["points"])
        assert curve["points"][7] == {"bytes": 64 << 20, "hit_ratio": 0.6667} and curve["hit_ratio"] == 0.6667
        assert curve["points"][0]["bytes"] == 8 << 20 and curve["points"][0]["hit_ratio"] == 0.6667  # 3.2 MiB are enough
        assert values["mooncake_hit_ratio"] == values['mooncake_expected_hit_ratio{memory="1"}'] == 0.6667
        assert values['mooncake_reuse_seconds_count'] == 200
        advice = misses(master, f"?more_bytes={64 << 30}")["advice"]
        assert advice == [{"more_bytes": 64 << 30, "points": 0.0, "text": "64.00 GB more: +0.0 points"}]
        assert [step["more_bytes"] >> 20 for step in misses(master)["advice"]] == [16, 32, 64]
        for bad in ("x", "-1", "1x", "", "99999999999999999999"):
            assert master.get(f"/api/v1/misses?more_bytes={bad}")[0] == 400, bad
        assert b"/api/v1/misses" in master.get("/app.js")[1]
        owner.close()


def test_no_key():
    with Master() as master:
        assert master.get("/api/v1/misses/why")[0] == 400
        assert master.get("/api/v1/misses/why?key=")[0] == 400
        assert master.get("/api/v1/misses/why?key=" + "k" * 2000)[0] == 400
