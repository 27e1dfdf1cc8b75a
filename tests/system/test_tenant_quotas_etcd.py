"""Quotas of tenants in a real etcd: read at the start, changed there by whom else, written back in place of what was read and of nothing else."""
import base64
import concurrent.futures
import contextlib
import json
import subprocess
import time

import pytest

from cluster import BUILD, Master, request, says, wait_until
from etcd import Etcd, Proxy
from python_cluster import SEGMENT, SLOW
from store_process import StoreProcess
from test_tenants import call, opened, quota

CLUSTER = "quotas"
KEY = f"mooncake-store/{CLUSTER}/tenant_quota_policy"
MIB = 1 << 20
POLICY = "version: 1\ntenants:\n  - name: blue\n    quota: 1MB\n  - name: \"red\"\n    quota: 8MB\n    objects: 3\n"


@pytest.fixture(scope="module")
def running():
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def etcd(running):
    running.heal()
    running.ask("/v3/kv/deleterange", key=KEY.encode())
    return running


def write(etcd, text):
    etcd.ask("/v3/kv/put", key=KEY.encode(), value=text.encode())


def revision(etcd):
    return etcd.ask("/v3/kv/range", key=KEY.encode())["kvs"][0]["mod_revision"]


def quota_master(where, *flags):
    return Master("--enable_multi_tenants", "--tenant_quota_connector_type=etcd", f"--tenant_quota_connector_uri={where}", f"--cluster_id={CLUSTER}", *flags)


@contextlib.contextmanager
def with_memory(master):
    node = StoreProcess(master.address, SEGMENT).start()
    try:
        wait_until(lambda: len(master.get("/get_all_segments")[1].split()) == 1)
        yield node
    finally:
        node.stop()


def names(master):
    return {one["tenant_id"]: one["requested_quota_bytes"] for one in json.loads(master.get("/api/v1/tenant_quotas")[1])["data"] if one["has_explicit_policy"]}


def test_they_are_read_changed_by_others_and_hold(etcd):
    write(etcd, POLICY)
    with quota_master(etcd.endpoints) as master, with_memory(master), opened(master, "blue") as blue, opened(master, "green") as green:
        assert names(master) == {"blue": MIB, "red": 8 * MIB} and quota(master, "red")["requested_quota_objects"] == 3
        wait_until(lambda: blue.put("k", bytes(1000)) == 0)
        assert green.put("k", b"v") == -1701 and blue.put("large", bytes(2 * MIB)) == -1700
        write(etcd, POLICY.replace("1MB", "4MB").replace("red", "green"))  # who has none any more, who has a new one, who has another
        wait_until(lambda: names(master) == {"blue": 4 * MIB, "green": 8 * MIB}, 30 * SLOW)
        assert green.put("k", b"v") == 0 and blue.put("large", bytes(2 * MIB)) == 0
        write(etcd, "version: 1\ntenants: []\n")
        wait_until(lambda: names(master) == {}, 30 * SLOW)
        assert blue.put("more", b"v") == -1701 and blue.get("k") == bytes(1000), "what it has stays, though nobody could have taken its quota away here"
        assert call(master, "DELETE", "blue")[0] == 404
        says(master, "changed in etcd")


def test_changes_are_kept_for_the_next_master(etcd):
    with quota_master(etcd.endpoints) as master:
        assert "no quotas of tenants are in etcd yet" in master.log() and names(master) == {}
        assert call(master, "PUT", "blue", requested_quota_bytes=5 * MIB, requested_quota_objects=7, guaranteed_bytes=MIB, guaranteed_objects=2)[0] == 200
        assert etcd.text(KEY) == 'version: 1\n\ntenants:\n  - name: "blue"\n    quota: 5242880\n    objects: 7\n    guaranteed: 1048576\n    guaranteed_objects: 2\n'
        assert call(master, "PUT", "red", requested_quota_bytes=MIB)[0] == 200 and call(master, "PUT", "blue", requested_quota_bytes=6 * MIB)[0] == 200
        assert call(master, "DELETE", "red")[0] == 200 and call(master, "DELETE", "red")[0] == 404
        master.kill()
        master.start()
        wait_until(lambda: names(master) == {"blue": 6 * MIB}, 30 * SLOW)
        kept = etcd.text(KEY)
        assert call(master, "PUT", "_bad", requested_quota_bytes=MIB)[0] == 400 and etcd.text(KEY) == kept


def test_nobody_overwrites_what_another_has_written(etcd):
    """Two masters that know nothing of each other, and each has read what the other then changes."""
    with quota_master(etcd.endpoints) as one, quota_master(etcd.endpoints) as other:
        for round in range(5):
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                found = list(pool.map(lambda pair: call(pair[0], "PUT", f"{pair[1]}{round}", requested_quota_bytes=MIB + round)[0], ((one, "a"), (other, "b"))))
            assert found == [200, 200]
        wanted = {f"{who}{round}": MIB + round for round in range(5) for who in "ab"}
        for master in (one, other):
            wait_until(lambda: names(master) == wanted, 30 * SLOW)
        assert call(one, "DELETE", "b0")[0] == 200
        wait_until(lambda: "b0" not in names(other), 30 * SLOW)
        written = revision(etcd)
        time.sleep(5)
        assert revision(etcd) == written, "nobody writes unasked"


def test_without_etcd_what_was_known_holds_and_nothing_can_be_changed(etcd):
    write(etcd, POLICY)
    with quota_master(etcd.endpoints) as master, with_memory(master), opened(master, "red") as red:
        wait_until(lambda: red.put("k", b"v") == 0)
        for member in range(3):
            etcd.kill(member)
        assert call(master, "PUT", "red", requested_quota_bytes=9 * MIB)[0] == 500 and call(master, "PUT", "green", requested_quota_bytes=MIB)[0] == 500
        assert call(master, "DELETE", "blue")[0] == 500
        assert names(master) == {"blue": MIB, "red": 8 * MIB} and red.put("l", b"v") == 0
        start = time.monotonic()
        assert master.get("/health")[0] == 200
        assert time.monotonic() - start < 5 * SLOW, "only who changes a quota waits for etcd"
        etcd.heal()
        assert wait_until(lambda: call(master, "PUT", "red", requested_quota_bytes=9 * MIB)[0] == 200, 30 * SLOW)
        assert "quota: 9437184" in etcd.text(KEY) and names(master) == {"blue": MIB, "red": 9 * MIB}


def test_a_lost_answer_is_no_lost_change(etcd):
    """etcd does what it is told, and its answer comes too late to be believed: the next question finds out."""
    write(etcd, POLICY)
    with Proxy(etcd.ports[0]) as proxy, quota_master(f"127.0.0.1:{proxy.port}") as master:
        proxy.delay_s = 0.6  # longer than one answer is waited for alone, so that it is asked twice
        assert call(master, "PUT", "red", requested_quota_bytes=9 * MIB)[0] in (200, 500)
        proxy.delay_s = 0
        wait_until(lambda: names(master) == {"blue": MIB, "red": 9 * MIB}, 30 * SLOW)
        assert etcd.text(KEY).count("name:") == 2 and "quota: 9437184" in etcd.text(KEY)


def test_what_nobody_can_read_or_is_gone_changes_nothing(etcd):
    write(etcd, POLICY)
    with quota_master(etcd.endpoints) as master:
        write(etcd, "version: 1\ntenants:\n  - name: blue\n")
        wait_until(lambda: "the quotas of tenants in etcd cannot be read: a quota is 1 to" in master.log(), 30 * SLOW)
        assert names(master) == {"blue": MIB, "red": 8 * MIB}
        bad = etcd.text(KEY)
        assert call(master, "PUT", "green", requested_quota_bytes=MIB)[0] == 500 and etcd.text(KEY) == bad, "an administrator's text is not thrown away"
        write(etcd, POLICY)
        etcd.ask("/v3/kv/deleterange", key=KEY.encode())
        wait_until(lambda: "are not in etcd any more" in master.log(), 30 * SLOW)
        assert names(master) == {"blue": MIB, "red": 8 * MIB}
        assert call(master, "PUT", "green", requested_quota_bytes=MIB)[0] == 200
        assert names(master) == {"blue": MIB, "red": 8 * MIB, "green": MIB} and etcd.text(KEY).count("name:") == 3


def test_the_next_leader_has_them(etcd):
    flags = ["--enable_multi_tenants", "--enable_ha", f"--etcd_endpoints={etcd.endpoints}", "--tenant_quota_connector_type=etcd", f"--cluster_id={CLUSTER}"]
    write(etcd, POLICY)
    with Master(*flags) as first, Master(*flags) as second:
        masters = [first, second]

        def leader():
            return next((one for one in masters if one.process is not None and one.get("/role")[1] == b"leader"), None)

        def serving():
            one = leader()
            return one is not None and request(one.metrics_port, "GET", "/api/v1/tenant_quotas")[0] == 200

        wait_until(serving, 30 * SLOW)
        led = leader()
        assert names(led) == {"blue": MIB, "red": 8 * MIB} and call(led, "PUT", "green", requested_quota_bytes=MIB)[0] == 200
        masters.remove(led)
        led.kill()
        wait_until(serving, 30 * SLOW)
        wait_until(lambda: names(leader()) == {"blue": MIB, "red": 8 * MIB, "green": MIB}, 30 * SLOW)


@pytest.mark.parametrize("flags, says", [
    ((), "needs --tenant_quota_connector_uri"), (("--tenant_quota_connector_uri=ftp://x",), "etcd endpoint 'ftp://x'"),
    (("--tenant_quota_connector_uri=" + "h:1;" * 130,), "too long"), (("--tenant_quota_connector_uri=127.0.0.1:1", f"--cluster_id={'x' * 300}"), "--cluster_id is too long"),
    (("--tenant_quota_connector_uri=127.0.0.1:1",), "the quotas of tenants cannot be read from etcd")])
def test_what_cannot_be_begins_nothing(flags, says):
    command = [BUILD / "mooncake_master", "--enable_multi_tenants", "--tenant_quota_connector_type=etcd", *flags, "--rpc_port=0", "--metrics_port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 1 and says in done.stderr.splitlines()[-1], done.stderr


def test_a_text_that_nobody_can_read_begins_nothing(etcd):
    write(etcd, "version: 2\n")
    command = [BUILD / "mooncake_master", "--enable_multi_tenants", "--tenant_quota_connector_type=etcd", f"--tenant_quota_connector_uri={etcd.endpoints}",
               f"--cluster_id={CLUSTER}", "--rpc_port=0", "--metrics_port=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW)
    assert done.returncode == 1 and "cannot be read" in done.stderr
    assert base64.b64decode(etcd.ask("/v3/kv/range", key=KEY.encode())["kvs"][0]["value"]) == b"version: 2\n"
