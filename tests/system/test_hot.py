"""What is read often: copied to the host that reads it (--dynamic_replication_mode), or kept by who reads it (MC_STORE_LOCAL_HOT_CACHE_SIZE).

With MC_LAB (tests/lab/test_store.py) the node is on another host than the reader; without, on the same one, where nothing is to be copied."""
import os
import threading

import pytest

import cluster
from python_cluster import MISSING, SEGMENT, arguments, joined, pattern, wait_until
from store_process import StoreProcess
from mooncake.store import MooncakeDistributedStore

APART = bool(os.environ.get("MC_LAB"))
FLAGS = ("--dynamic_replication_heat_window_seconds=60", "--dynamic_replication_admission_qps_threshold=0.1")  # the sixth read makes it hot
READS = 6


@pytest.fixture(params=["enforce", "observe", "off"])
def mode(request):
    return request.param


def replicas(store, key):
    return len(store.get_replica_desc(key))


def counts(master):
    metrics = master.metrics()
    return tuple(int(metrics[f"mooncake_hot_{name}_total"]) for name in ("objects", "copies_wanted", "copies"))


def test_a_hot_object_comes_to_its_reader(mode):
    value = pattern(700_000)
    with cluster.Master(*FLAGS, f"--dynamic_replication_mode={mode}") as master, StoreProcess(master.address, SEGMENT):
        writer = joined(master, 0)
        wait_until(lambda: writer.put("hot", value) == 0)
        assert writer.put("cold", value) == 0
        reader = joined(master)
        for _ in range(READS - 1):
            assert reader.get("hot") == value
        assert counts(master) == (0, 0, 0)
        assert reader.get("hot") == value
        assert counts(master)[0] == (mode != "off")
        assert counts(master)[1] == (APART and mode != "off")
        if APART and mode == "enforce":
            wait_until(lambda: replicas(writer, "hot") == 2)
            assert any(one.get_memory_descriptor().buffer_descriptor.transport_endpoint == reader.get_hostname() for one in writer.get_replica_desc("hot"))
            assert reader.get("hot") == value == writer.get("hot")
            assert counts(master) == (1, 1, 1)
            # It is one value with two places, as ever.
            assert writer.upsert("hot", value[::-1]) == 0
            assert reader.get("hot") == value[::-1] == writer.get("hot")
            assert writer.remove("hot", True) == 0
            assert reader.get("hot") == b"" and replicas(writer, "hot") == 0
        else:
            assert replicas(writer, "hot") == 1
        assert replicas(writer, "cold") == 1
        assert writer.close() == 0 and reader.close() == 0


def test_copies_are_made_while_it_is_read_replaced_and_removed():
    """Whatever becomes of the copy: who reads after a value was acknowledged reads that or a later one, and what was removed stays removed."""
    with cluster.Master(*FLAGS, "--dynamic_replication_mode=enforce") as master, StoreProcess(master.address, SEGMENT):
        writer, reader = joined(master, 0), joined(master)
        acknowledged, wrong, ended = [0], [], threading.Event()
        wait_until(lambda: writer.put("key", bytes(400_000)) == 0)

        def read():
            while not ended.is_set():
                least = acknowledged[0]
                value = reader.get("key")
                if len(value) != 400_000 or value != value[:1] * 400_000 or value[0] < least:
                    wrong.append((least, len(value), value[:1]))
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(1, 60):
            assert writer.upsert("key", bytes([number]) * 400_000) == 0
            acknowledged[0] = number
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert writer.remove("key", True) == 0
        assert reader.get("key") == b"" and reader.is_exist("key") == 0
        assert writer.close() == 0 and reader.close() == 0


def test_a_reader_keeps_what_it_reads_often(monkeypatch):
    value = pattern(3_000_000)
    with cluster.Master() as master, StoreProcess(master.address, SEGMENT):
        writer = joined(master, 0)
        wait_until(lambda: writer.put("key", value) == 0)
        monkeypatch.setenv("MC_STORE_LOCAL_HOT_CACHE_SIZE", str(16 << 20))
        if not APART:
            monkeypatch.setenv("MC_PATHS", "tcp")
        port = cluster.free_ports(1)[0]
        reader = MooncakeDistributedStore()
        assert reader.setup(*arguments(master, 0), enable_client_http_server=True, client_http_port=port) == 0

        def metric(name):
            status, body = cluster.request(port, "GET", "/metrics")
            assert status == 200
            return cluster.samples_of(body)[f"mooncake_client_{name}"]
        for _ in range(5):
            assert reader.get("key") == value
        assert metric("hot_hits_total") == 3
        assert 3_000_000 < metric("hot_bytes") < 3_010_000
        assert 6_000_000 <= metric("path_tcp_bytes_total") < 6_300_000
        assert writer.upsert("key", value[::-1]) == 0
        assert reader.get("key") == value[::-1]
        assert writer.remove("key", True) == 0
        assert reader.get("key") == b"" and reader.get_size("key") == MISSING
        assert writer.close() == 0 and reader.close() == 0
