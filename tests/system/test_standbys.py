"""Which masters wait to lead: told by the leader and by each other, with etcd and with a Lease, and without any effect on who leads."""
import base64
import json
import subprocess
import time

import pytest

from certificates import Authority
from api_server import ApiServer
from cluster import BUILD, Master, wait_until
from etcd import Etcd, Proxy
from test_console import PLAIN
from test_ha import CLUSTER, Masters, epoch_of, serves
from test_lease import LEASE, Pods

PREFIX = f"mooncake-store/{CLUSTER}/standby/"
STANDBYS = LEASE + "-standbys"
SOON_S, GONE_S = 15, 30  # a word each 5 s, a look each 5 s; gone 15 s after the last word, and one look


def told(master):
    status, body = master.get("/api/v1/overview")
    assert status == 200
    return json.loads(body)["data"]


def waiting(master):
    data = told(master)
    return sorted(one["address"] for one in data["standbys"]) if data["standbys_are_known"] else None


def addresses(masters):
    return sorted(one.address for one in masters)


@pytest.fixture(scope="module")
def etcd():
    with Etcd() as running:
        yield running


def keys_of(etcd):
    found = etcd.ask("/v3/kv/range", key=PREFIX.encode(), range_end=PREFIX[:-1].encode() + b"0").get("kvs", [])
    return {base64.b64decode(one["key"]).decode(): json.loads(base64.b64decode(one["value"])) for one in found}


def test_who_waits_in_etcd(etcd):
    with Masters(etcd, 3) as masters:
        leader = masters.leader()
        others = masters.others(leader)
        wait_until(lambda: waiting(leader) == addresses(others), SOON_S, "both to be told")
        one = told(leader)["standbys"][0]
        assert one["name"] and one["build"] == told(leader)["build"] and one["heard_ms"] < 20_000
        assert abs(told(leader)["time_ms"] - one["since_ms"]) < 60_000
        assert leader.metrics()["mooncake_standbys"] == 2
        wait_until(lambda: all(waiting(other) == addresses(others) for other in others), SOON_S, "standbys to tell it, too")
        text = subprocess.run([BUILD / "mooncake", f"--admin=127.0.0.1:{leader.metrics_port}", "status"], capture_output=True, text=True, timeout=60, env=PLAIN).stdout
        assert all(f"standby   {other.address}, " in text for other in others) and " waits " in text and "s ago" in text

        assert others[0].stop() == 0  # it takes its word back
        wait_until(lambda: waiting(leader) == addresses(others[1:]) and len(keys_of(etcd)) == 1, SOON_S, "who has ended to be gone")
        epoch = epoch_of(leader)
        others[1].kill()
        wait_until(lambda: waiting(leader) == [], GONE_S, "who was killed to be gone")
        assert leader.metrics()["mooncake_standbys"] == 0 and epoch_of(leader) == epoch and keys_of(etcd) == {}
        text = subprocess.run([BUILD / "mooncake", f"--admin=127.0.0.1:{leader.metrics_port}", "status"], capture_output=True, text=True, timeout=60, env=PLAIN).stdout
        assert "standby   none says that it waits" in text

        others[0].start()  # who follows does not wait any more
        wait_until(lambda: waiting(leader) == addresses(others[:1]), SOON_S, "one that came")
        assert leader.stop() == 0
        assert masters.leader([others[0]])
        wait_until(lambda: waiting(others[0]) == [] and keys_of(etcd) == {}, SOON_S, "its word to be taken back")


def test_strangers(etcd):
    """Who may write there is told, as text, and as one of few."""
    evil = "<script>\x1b[31m\u009b1m\"'"
    with Masters(etcd, 1) as masters:
        leader = masters.leader()
        wait_until(lambda: waiting(leader) == [], SOON_S)
        for number in range(100):
            word = {"name": evil, "address": f"{evil}{number}:1", "build": evil, "since_ms": 2**64 - 1, "beat": 1}
            etcd.ask("/v3/kv/put", key=f"{PREFIX}{number:03}".encode(), value=json.dumps(word).encode())
        etcd.ask("/v3/kv/put", key=f"{PREFIX}".encode(), value=b"x" * 100_000)
        wait_until(lambda: len(waiting(leader) or []) == 16, SOON_S, "as many as are kept")
        assert told(leader)["standbys"][0]["name"] == evil
        text = subprocess.run([BUILD / "mooncake", f"--admin=127.0.0.1:{leader.metrics_port}", "status"], capture_output=True, timeout=60, env=PLAIN).stdout.decode()
        assert text.count("standby   ") == 16 and "\x1b" not in text and "\u009b" not in text and "<script>" in text
        wait_until(lambda: waiting(leader) == [], GONE_S, "what stands still to be nobody")
        etcd.ask("/v3/kv/deleterange", key=PREFIX.encode(), range_end=PREFIX[:-1].encode() + b"0")


def test_a_slow_or_silent_etcd_delays_no_renewal(etcd):
    """The list has a client of its own: it may hang."""
    with Proxy(etcd.ports[0]) as proxy, Master("--enable_ha", f"--etcd_endpoints=127.0.0.1:{proxy.port}", "--cluster_id=slow", "--ha_lease_ttl=3s") as master:
        wait_until(lambda: serves(master), 20, "a leader")
        wait_until(lambda: waiting(master) == [], SOON_S)
        epoch = epoch_of(master)
        proxy.delay_s = .4
        for _ in range(24):
            assert serves(master) and epoch_of(master) == epoch
            time.sleep(.5)
        proxy.is_mute = True
        wait_until(lambda: not told(master)["standbys_are_known"], 40, "that it does not know it any more")
        begin = time.monotonic()
        assert master.stop() == 0 and time.monotonic() - begin < 8


def test_a_word_that_cannot_be_taken_back(etcd):
    """Its lease has ended before, say: once is enough."""
    with Proxy(etcd.ports[0]) as proxy:
        proxy.unknown = b"/v3/lease/revoke"
        with Master("--enable_ha", f"--etcd_endpoints=127.0.0.1:{proxy.port}", "--cluster_id=kept") as master:
            wait_until(lambda: serves(master) and proxy.unknown_count == 1, 20, "a leader that takes its word back")
            time.sleep(11)
            assert proxy.unknown_count == 1 and waiting(master) == []


def test_who_waits_by_a_lease(tmp_path):
    with ApiServer(tmp_path, Authority(tmp_path, "ca")) as api, Pods(api, 3, "--ha_lease_ttl=15000") as pods:
        leader = pods.leader(timeout_s=60)
        others = pods.others(leader)
        wait_until(lambda: waiting(leader) == addresses(others), 2 * SOON_S, "both to be told")
        assert not any("standby" in note for note in api.leases[LEASE]["metadata"]["annotations"]), "the election's own Lease is left alone"
        wait_until(lambda: len(api.leases[STANDBYS]["metadata"]["annotations"]) == 2, SOON_S, "the leader to have taken its word back")
        notes = api.leases[STANDBYS]["metadata"]["annotations"]
        assert all(json.loads(note)["address"] in addresses(others) for note in notes.values())
        assert others[0].stop() == 0
        wait_until(lambda: waiting(leader) == addresses(others[1:]), SOON_S, "who has ended to be gone")
        others[1].kill()
        wait_until(lambda: waiting(leader) == [], GONE_S, "who was killed to be gone")


def test_a_place_where_nobody_may_write(tmp_path):
    """Then nobody is told, and who leads goes on."""
    with ApiServer(tmp_path, Authority(tmp_path, "ca")) as api:
        api.hidden = {STANDBYS}
        with Pods(api, 1) as pods:
            leader = pods.leader()
            time.sleep(8)
            assert waiting(leader) is None and serves(leader) and 1 <= leader.log().count("(403)") <= 2, "once as a standby, once as the leader"
            assert "mooncake_standbys" not in leader.metrics()


@pytest.mark.parametrize("status", (429, 503))
def test_an_api_server_that_has_too_much_to_do(tmp_path, status):
    """It says so, and then answers as before: nobody is silent for much longer than that takes."""
    with ApiServer(tmp_path, Authority(tmp_path, "ca")) as api, Pods(api, 2, "--ha_lease_ttl=15000") as pods:
        leader = pods.leader(timeout_s=60)
        other = pods.others(leader)[0]
        wait_until(lambda: waiting(leader) == [other.address], 2 * SOON_S, "it to be told")
        api.failing = {STANDBYS: status}
        wait_until(lambda: api.asked.count((STANDBYS, status)) >= 3, 20, "both to hear that")
        api.failing = {}
        before = api.leases[STANDBYS]["metadata"]["annotations"]
        wait_until(lambda: api.leases[STANDBYS]["metadata"]["annotations"] != before, 15, "another word")
        wait_until(lambda: waiting(leader) == [other.address], 15, "it to be told again")
