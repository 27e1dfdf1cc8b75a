"""The rules that are shipped, in a real Prometheus beside real processes: each fires in its fault and no other with it, and none when all is well."""
import contextlib
import os
import re
import signal
import struct
import threading
import time

import cluster
import pytest
from cluster import Master, hold_still, wait_until
from harm import HeldThread, threads_of
from prometheus import PROMETHEUS, RULES, SHIPPED, promtool, scaled, watching
from proxy_engines import Engine, Proxy
from python_cluster import joined, pattern, with_fields
from service_process import Service
from store_process import StoreProcess
from test_cluster_id import A, B, leave_contents_of_a, refused
from test_warm_restart import flip
from wire import FakeOwner, record

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus here")

MIB = 1 << 20
NAMES = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
SUSPECT = 54  # of the protocol (src/store/wire/rpc.def): somebody could not reach a segment
LONG = "--client_ttl=3600s"  # nobody is given up, or found silent, on a machine that is busy
SEEN = set()  # the rules that some test here has made fire


@contextlib.contextmanager
def cluster_of(*flags, nodes=1, **variables):
    """A master and store nodes in the order of their start; who is still there at the end ends well, or is killed if it cannot."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(Master(*(flags or (LONG,))))
        services = [stack.enter_context(Service(MOONCAKE_MASTER=master.address, **variables)) for _ in range(nodes)]
        wait_until(lambda: master.metrics()["mooncake_segments"] == nodes, cluster.START_S)
        yield master, services


def fires(prometheus, *names, beside=()):
    """These do, and none but those that the fault brings with it."""
    assert set(names) | set(beside) <= NAMES
    wait_until(lambda: set(names) <= prometheus.fired(), 120, f"{names} to fire")
    assert prometheus.fired() <= {*names, *beside}, prometheus.fired()
    SEEN.update(names)


@contextlib.contextmanager
def client_of(master, segment=0):
    store = joined(master, segment)
    try:
        yield store
    finally:
        store.close()


def during(condition, act, seconds=120):
    """Does something again and again until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        act()
        assert time.monotonic() < end, "it did not come"


def key_in_each(master, client):
    """The segments; each has an object of its name."""
    segments = re.findall(r'segment_total_capacity_bytes\{segment="([^"]+)"', master.get("/metrics")[1].decode())
    for segment in segments:
        wait_until(lambda segment=segment: client.put(segment, bytes(1000), with_fields(preferred_segment=segment)) == 0)
    return segments


def stuck(process, name):
    return [HeldThread(process, task=task) for task in threads_of(process, name)]


# ---- the files ----

def test_promtool_has_nothing_to_say():
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert code == 0 and f"SUCCESS: {len(NAMES)} rules found" in said and "warning" not in said.lower(), said
    code, said = promtool("check", "config", "--lint=all", "--lint-fatal", SHIPPED / "prometheus.yml")
    assert code == 0 and "warning" not in said.lower(), said


def test_time_goes_faster_in_all_places():
    """No span of the rules is left as it is."""
    text = RULES.read_text()
    spans = re.findall(r"\[(\w+)\]|for: (\w+)", text)
    assert len(spans) > 15
    rest = re.findall(r"\[(\w+)\]|for: (\w+)", scaled(text))
    assert len(rest) == len(spans) and all((one or other).endswith("ms") for one, other in rest)


# ---- all is well ----

def test_quiet(tmp_path):
    disk = dict(MOONCAKE_OFFLOAD_ENABLED="true", MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=256 * MIB)
    with Master("--enable_offload") as master, contextlib.ExitStack() as stack:
        nodes = []
        for name in "ab":
            (tmp_path / name).mkdir()
            nodes.append(stack.enter_context(Service(MOONCAKE_MASTER=master.address, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=tmp_path / name, **disk)))
        proxy = stack.enter_context(Proxy("--prefill", Engine().address, "--decode", Engine().address))
        with client_of(master) as client, watching(master, nodes, [proxy]) as prometheus:
            wait_until(lambda: client.put("first", bytes(MIB)) == 0)
            count = [0]

            def work():
                key = f"key-{count[0] % 50}"
                count[0] += 1
                if client.is_exist(key) == 0:
                    client.put(key, bytes(100_000))
                client.get(key)
                assert proxy.complete()[0] == 200
                time.sleep(0.05)
            begun = time.monotonic()
            during(lambda: time.monotonic() - begun > 40, work)  # longer than the rules wait that wait longest
            prometheus.turns(3)
            assert prometheus.fired() == set()
            answer = prometheus.get("/api/v1/rules")
            assert answer.count('"health":"ok"') == len(NAMES), answer
            # What the rules look at is there: one that asks for a name that nobody has would be as quiet.
            names = set(re.findall(r"\b(?:mooncake|master|up)(?:_[a-z_]+)?(?=[\s{[)])", " ".join(re.findall(r"expr: (?:>\n(?: {10}.*\n)+|.*)", RULES.read_text()))))
            assert len(names) > 18
            may_be_absent = {"mooncake_accusing_host"}
            assert {name for name in names if not prometheus.query(name)} <= may_be_absent


# ---- faults ----

def test_nobody_leads():
    with cluster_of() as (master, nodes), watching(master, nodes) as prometheus:
        master.kill()
        fires(prometheus, "MooncakeNobodyLeads")
        master.start()


@contextlib.contextmanager
def busy(client):
    """It asks for many keys again and again, so that the master is in the middle of an answer most of the time."""
    end, keys = threading.Event(), [f"key-{number}" for number in range(5000)]

    def run():
        while not end.is_set():
            client.batch_is_exist(keys)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_the_master_stands_still():
    with cluster_of() as (master, nodes), watching(master, nodes) as prometheus, client_of(master) as client, busy(client):
        def stop():  # a turn is what lies between two waits: it must be hit
            hold_still(master.pid)
            time.sleep(1.3)
            os.kill(master.pid, signal.SIGCONT)
            time.sleep(0.7)
        during(lambda: "MooncakeMasterIsLate" in prometheus.fired(), stop, 300)
        fires(prometheus, "MooncakeMasterIsLate", beside=["MooncakeNobodyLeads"])


def test_a_node_is_killed():
    with cluster_of("--client_ttl=5s", nodes=2) as (master, nodes), watching(master, nodes) as prometheus:
        nodes[0].kill()
        fires(prometheus, "MooncakeStoreNodeDown", "MooncakeNodeLost", beside=["MooncakeNodeIsSuspect"])


def test_a_node_is_stopped(monkeypatch):
    """A client complains of it. It is hidden, trusted again, and nobody is lost."""
    monkeypatch.setenv("MC_PATHS", "tcp")
    with cluster_of(nodes=2) as (master, nodes), client_of(master) as client, watching(master, nodes) as prometheus:
        pid = nodes[0].process.pid
        segments = key_in_each(master, client)
        assert len(segments) == 2
        hold_still(pid)
        try:
            for segment in segments:
                client.get(segment)
            fires(prometheus, "MooncakeNodeIsSuspect", "MooncakeStoreNodeDown")
        finally:
            os.kill(pid, signal.SIGCONT)
        prometheus.wait("mooncake_segments_suspect == 0 and mooncake_segments == 2")
        assert prometheus.fired() == {"MooncakeNodeIsSuspect", "MooncakeStoreNodeDown"}


def test_what_serves_stands_still():
    with cluster_of("--client_ttl=5s", nodes=2) as (master, nodes), watching(master, nodes) as prometheus:
        time.sleep(3)  # a master that is young removes nothing
        held = stuck(nodes[0].process.pid, "mc-serve")
        try:
            fires(prometheus, "MooncakeNodeStandsStill", beside=["MooncakeNodeIsSuspect"])
        finally:
            for one in held:
                one.release()


def test_there_is_no_room():
    with cluster_of() as (master, nodes), watching(master, nodes) as prometheus, client_of(master) as client:
        pinned = with_fields(with_hard_pin=True)
        wait_until(lambda: client.put("first", bytes(MIB), pinned) == 0)
        number = iter(range(1_000_000))
        during(lambda: "MooncakePutsFindNoRoom" in prometheus.fired(), lambda: client.put(f"key-{next(number)}", bytes(4 * MIB), pinned))
        fires(prometheus, "MooncakePutsFindNoRoom")


def test_the_pool_thrashes():
    """A working set of half as much again as there is memory, in turns."""
    with cluster_of(LONG, "--default_kv_lease_ttl=0") as (master, nodes), watching(master, nodes) as prometheus, client_of(master) as client:
        wait_until(lambda: client.put("first", bytes(MIB)) == 0)
        number = iter(range(1_000_000))

        def work():
            key = f"key-{next(number) % 48}"
            if client.get(key) == b"":
                client.put(key, bytes(2 * MIB))
            time.sleep(0.05)
        during(lambda: "MooncakePoolThrashes" in prometheus.fired(), work, 200)
        fires(prometheus, "MooncakePoolThrashes")


def test_hits_fall():
    with cluster_of() as (master, nodes), watching(master, nodes) as prometheus, client_of(master) as client:
        wait_until(lambda: client.put("key", bytes(1000)) == 0)
        for _ in range(6000):
            assert client.get("key") != b""
        number = iter(range(1_000_000))

        def work():
            client.get(f"other-{next(number)}")
            time.sleep(0.05)
        during(lambda: "MooncakeHitsFell" in prometheus.fired(), work, 200)
        fires(prometheus, "MooncakeHitsFell")


def test_space_is_not_given_back():
    """Its owner does not clear what is removed."""
    with cluster_of() as (master, nodes), watching(master, nodes) as prometheus, client_of(master) as client:
        wait_until(lambda: client.put("key", bytes(16 * MIB)) == 0)
        held = stuck(nodes[0].process.pid, "mc-serve")
        try:
            wait_until(lambda: client.remove("key", True) == 0)
            fires(prometheus, "MooncakeSpaceIsNotGivenBack", beside=["MooncakeNodeIsSuspect"])
        finally:
            for one in held:
                one.release()


def test_bytes_rot(folder):
    value = pattern(200_000, 5)
    with Master(LONG) as master, StoreProcess(master.address, data_dir=folder, MC_SCRUB_MB_PER_S="64"), client_of(master) as client:
        wait_until(lambda: client.put("rotten", value) == 0)
        with watching(master) as prometheus:
            flip(folder, value)
            fires(prometheus, "MooncakeBytesRot")


def test_a_disk_cannot_be_used(tmp_path):
    with cluster_of(LONG, "--enable_offload", MOONCAKE_OFFLOAD_ENABLED=1, MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=tmp_path / "missing") as (master, nodes):
        with watching(master, nodes) as prometheus:
            fires(prometheus, "MooncakeDiskAils")


def test_disks_are_slower_than_puts(tmp_path):
    """They have a budget of nothing at all."""
    with cluster_of(LONG, "--enable_offload", "--offload_on_evict", "--offload_cap_ratio=0", "--default_kv_lease_ttl=0", MOONCAKE_OFFLOAD_ENABLED=1,
                    MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=tmp_path, MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=256 * MIB) as (master, nodes):
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        with watching(master, nodes) as prometheus, client_of(master) as client:
            wait_until(lambda: client.put("first", bytes(MIB)) == 0)
            number = iter(range(1_000_000))

            def work():
                client.put(f"key-{next(number)}", bytes(4 * MIB))
                time.sleep(0.05)
            during(lambda: "MooncakeDisksAreTooSlow" in prometheus.fired(), work, 200)
            fires(prometheus, "MooncakeDisksAreTooSlow")


def test_a_host_reaches_no_node():
    """It says so of three nodes, as the client of a host without a link does; all three answer the master."""
    with cluster_of(nodes=3) as (master, nodes), watching(master, nodes) as prometheus:
        stranger = FakeOwner(master.port, "127.0.0.1:9")

        def report():
            for segment in range(stranger.segment):
                stranger.caller.send(SUSPECT, record(struct.pack("<Ii", segment, -800)))
            prometheus.turns(1)
        during(lambda: "MooncakeHostIsWrongAboutNodes" in prometheus.fired(), report)
        fires(prometheus, "MooncakeHostIsWrongAboutNodes")
        stranger.close()


def test_clusters_are_mixed(folder):
    leave_contents_of_a(folder)
    with Master(LONG, f"--cluster_uuid={B}") as master, watching(master) as prometheus:
        assert A in refused(master.address, folder)
        fires(prometheus, "MooncakeClustersAreMixed")


def test_an_instance_of_the_proxy_is_down():
    prefill, decode = Engine(), Engine()
    with cluster_of() as (master, nodes), Proxy("--prefill", prefill.address, "--decode", decode.address) as proxy, watching(master, nodes, [proxy]) as prometheus:
        decode.kill()
        fires(prometheus, "MooncakeProxyInstanceDown")


def test_every_rule_has_fired(request):
    """Whoever adds a rule adds its fault."""
    if request.config.getoption("keyword"):
        pytest.skip("a part of the tests")
    assert SEEN == NAMES
