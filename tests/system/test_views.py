"""What the page and `mooncake` ask a master: the cluster in one answer, nodes, keys, history, events, drains that are taken back."""
import json
import urllib.parse

import pytest
from cluster import Master, request, wait_until
from wire import FakeOwner

MIB = 1 << 20


def ask(master, path, status=200):
    code, body = master.get("/api/v1/" + path)
    assert code == status, (path, code, body)
    return json.loads(body)


def post(master, path, document):
    return request(master.metrics_port, "POST", "/api/v1/" + path, json.dumps(document))


def mounted(master, name, **more):
    """An owner; the others' segments are not written to."""
    return FakeOwner(master.port, name, **more)


def test_overview():
    with Master() as master:
        empty = ask(master, "overview")["data"]
        assert empty["role"] == "leader" and empty["is_ready"] and empty["leader_address"] == master.address
        assert empty["segments"]["mounted"] == empty["memory"]["capacity_bytes"] == empty["memory"]["largest_free_bytes"] == 0 and empty["hit_ratio_lately"] is None
        owner = mounted(master, "node-a:1", capacity=64 * MIB)
        assert owner.put([b"a", b"b"], 5 * MIB) == [0, 0]
        told, values = ask(master, "overview")["data"], master.metrics()
        assert told["objects"] == 2 and told["segments"]["mounted"] == 1 and told["totals"]["put_bytes"] == 10 * MIB
        assert told["memory"]["capacity_bytes"] == 64 * MIB and told["memory"]["used_bytes"] == values["master_allocated_bytes"]
        assert 53 * MIB <= told["memory"]["largest_free_bytes"] <= 55 * MIB
        assert sum(told["misses"].values()) == 0 and told["drains"] == [] and told["accusers"] == []
        owner.close()
        wait_until(lambda: ask(master, "overview")["data"]["segments"]["suspect"] == 1)


def test_nodes_in_pages():
    with Master() as master:
        owners = [mounted(master, f"node-{number:02}:1") for number in range(7)]
        first = ask(master, "nodes?limit=3&sort=name")
        assert (first["total"], first["found"], first["offset"]) == (7, 7, 0)
        assert [node["name"] for node in first["nodes"]] == ["node-00:1", "node-01:1", "node-02:1"]
        node = first["nodes"][0]
        assert node["state"] == "OK" and node["segments"] == 1 and node["segment_names"] == ["node-00:1"] and node["id"] in master.log() and node["objects"] == 0
        assert [node["name"] for node in ask(master, "nodes?limit=3&sort=name&offset=6")["nodes"]] == ["node-06:1"]
        assert ask(master, "nodes?offset=7")["nodes"] == ask(master, "nodes?limit=0")["nodes"] == []
        found = ask(master, "nodes?find=-04")
        assert (found["total"], found["found"]) == (7, 1) and found["nodes"][0]["name"] == "node-04:1"
        assert ask(master, "nodes?find=" + urllib.parse.quote("<b>"))["found"] == 0
        owners[5].close()  # the worst comes first
        wait_until(lambda: ask(master, "nodes?limit=1")["nodes"][0]["state"] == "SUSPECT")
        assert ask(master, "nodes?limit=1")["nodes"][0]["name"] == "node-05:1"
        for bad in ("nodes?limit=1001", "nodes?limit=-1", "nodes?offset=x", "nodes?sort=colour", "nodes?limit="):
            ask(master, bad, 400)
        for owner in owners:
            owner.close()


def test_segments_of_one_owner_are_one_node():
    with Master() as master:
        owner = mounted(master, "node:1")
        owner.mount("node:2", 32 * MIB)
        told = ask(master, "nodes")
        assert told["total"] == 1 and told["nodes"][0]["segments"] == 2 and told["nodes"][0]["capacity_bytes"] == 96 * MIB
        assert told["nodes"][0]["segment_names"] == ["node:1", "node:2"] and told["nodes"][0]["name"] == "node:1"
        owner.close()


def all_keys(master, query):
    keys, cursor, pages = [], "0", 0
    while cursor is not None:
        page = ask(master, f"keys?{query}&cursor={cursor}")
        keys += page["keys"]
        cursor, pages = page.get("cursor"), pages + 1
        assert pages < 1000
    return keys, pages


def test_keys():
    with Master() as master:
        assert ask(master, "keys") == {"success": True, "keys": []}
        owner = mounted(master, "node:1")
        names = [b"model/%04d" % number for number in range(500)] + [b"<script>alert(1)</script>", b'"quoted" & more']
        assert set(owner.put(names, 4096)) == {0}
        for limit in (1, 7, 100, 1000):
            keys, pages = all_keys(master, f"limit={limit}")
            assert sorted(one["key"].encode() for one in keys) == sorted(names) and {one["bytes"] for one in keys} == {4096}
            assert pages >= len(names) / limit
        found, _ = all_keys(master, "prefix=model%2F049&limit=3")
        assert sorted(one["key"] for one in found) == ["model/0%03d" % number for number in range(490, 500)]
        assert all_keys(master, "prefix=nothing")[0] == []
        for bad in ("keys?limit=0", "keys?limit=1001", "keys?cursor=x"):
            ask(master, bad, 400)
        there = ask(master, "key?key=" + urllib.parse.quote(names[-2]))["data"]
        assert there["key"] == names[-2].decode() and there["is_there"] and there["bytes"] == 4096
        assert [(one["node"], one["is_on_disk"], one["state"]) for one in there["replicas"]] == [("node:1", False, "OK")]
        gone = ask(master, "key?key=nobody")["data"]
        assert not gone["is_there"] and gone["replicas"] == [] and gone["reason"] == "never_stored"
        ask(master, "key", 400)
        ask(master, "key?key=" + "x" * 5000, 400)
        owner.close()


def test_events():
    with Master() as master:
        first = ask(master, "events")
        assert [event["kind"] for event in first["events"]] == ["leader"] and first["last"] == 1
        owner = mounted(master, "node:1")
        assert post(master, "drain_jobs", {"segments": ["node:1"]})[0] == post(master, "undrain", {"segments": ["node:1"]})[0] == 200
        owner.close()
        wait_until(lambda: any("suspect" in event["text"] for event in ask(master, "events")["events"]))
        told = ask(master, "events?since=1")["events"]
        assert [event["kind"] for event in told] == ["segment", "trust", "drain", "drain", "trust"] and all(event["count"] == 1 and event["level"] == "info" for event in told)
        assert [event["number"] for event in told] == list(range(2, 7)) and "node:1" in told[0]["text"] and "is mounted" in told[0]["text"]
        assert [event["number"] for event in ask(master, "events?since=2&limit=2")["events"]] == [3, 4]
        assert [event["number"] for event in ask(master, "events?limit=2")["events"]] == [5, 6]
        assert ask(master, "events?since=99") == {"success": True, "last": 6, "events": []}
        ask(master, "events?limit=1001", 400)


def test_history():
    """Samples are ten seconds apart: the first is taken as it starts."""
    with Master() as master:
        told = wait_until(lambda: ask(master, "history"), what="a sample")
        assert told["seconds_each"] == 10 and told["step"] == 1 and ask(master, "history?range=day")["seconds_each"] == 120
        owner = mounted(master, "node:1")
        assert owner.put([b"a"], 4096) == [0]
        wait_until(lambda: len(ask(master, "history")["series"]["number"]) == 2, 30, "the second sample")
        series = ask(master, "history")["series"]
        assert series["number"] == [1, 2] and series["objects"] == [0, 1] and series["put_bytes"] == [0, 4096] and series["segments"] == [0, 1]
        assert {len(values) for values in series.values()} == {2} and sum(series[f"turns_{bound}"][1] for bound in ("100us", "1000us", "5000us", "20000us", "100000us", "500000us", "longer")) > 0
        assert ask(master, "history?since=1")["series"]["number"] == [2] and ask(master, "history?since=2")["series"] == {}
        one = ask(master, "history?points=1")
        assert one["series"]["number"] == [2] and one["step"] == 2
        assert ask(master, "overview")["data"]["per_second"]["put_end_items"] >= 0
        for bad in ("history?range=week", "history?points=0", "history?since=x", "history?points=99999"):
            ask(master, bad, 400)
        owner.close()


def test_drains_are_listed_and_taken_back():
    with Master() as master:
        owner = mounted(master, "node:1")
        assert owner.put([b"a"], 4096) == [0]
        assert ask(master, "drain_jobs")["jobs"] == []
        status, body = post(master, "drain_jobs", {"segments": ["node:1"]})
        assert status == 200
        jobs = ask(master, "drain_jobs")["jobs"]
        assert [(job["job_id"], job["status"], job["total_units"], job["succeeded_units"]) for job in jobs] == [(json.loads(body)["job_id"], "RUNNING", 1, 0)]
        data = ask(master, "overview")["data"]
        assert [{**job, "since_ms": 0} for job in data["drains"]] == [{**job, "since_ms": 0} for job in jobs] and data["segments"]["draining"] == 1
        assert ask(master, "nodes")["nodes"][0]["state"] == "DRAINING"
        assert post(master, "undrain", {"segments": ["node:1"]})[0] == 200
        assert ask(master, "drain_jobs")["jobs"][0]["status"] == "CANCELED" and ask(master, "nodes")["nodes"][0]["state"] == "OK"
        for wrong, code in (({"segments": ["nobody"]}, 404), ({"segments": []}, 400), ({}, 400)):
            assert post(master, "undrain", wrong)[0] == code
        owner.close()


def test_a_drained_segment_is_taken_back_by_name():
    with Master() as master:
        owner = mounted(master, "node:1")
        assert post(master, "drain_jobs", {"segments": ["node:1"]})[0] == 200
        assert ask(master, "drain_jobs")["jobs"][0]["status"] == "SUCCEEDED" and ask(master, "nodes")["nodes"][0]["state"] == "DRAINED"
        assert post(master, "undrain", {"segments": ["node:1"]})[0] == 200
        assert ask(master, "nodes")["nodes"][0]["state"] == "OK" and ask(master, "drain_jobs")["jobs"][0]["status"] == "SUCCEEDED"
        owner.close()


@pytest.mark.parametrize("path", ["overview", "nodes?limit=50", "history", "events", "keys"])
def test_a_refresh_is_small(path):
    """100 KB for all that the page asks for at once, also of many nodes; of a history that is full see test_history.c."""
    with Master() as master:
        owners = [mounted(master, f"a-node-with-a-rather-long-name-{number:04}.example.org:12300") for number in range(100)]
        assert len(master.get("/api/v1/" + path)[1]) < 30_000
        for owner in owners:
            owner.close()
