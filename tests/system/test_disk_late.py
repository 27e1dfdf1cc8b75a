"""After a power failure: the master is there at once, the machine with the disk long after its recovery window."""
import cluster
from cluster import wait_until
from python_cluster import MISSING, joined
from test_disk import node, stored, value_of
from test_recovery_progress import recovery


def test_what_lies_on_a_disk_waits_for_its_machine(folder, monkeypatch):
    with cluster.Master("--enable_offload", "--default_kv_lease_ttl=100") as master:
        store = node(master, folder, monkeypatch)
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        for number in range(5):
            wait_until(lambda number=number: store.put(f"key-{number}", value_of(number)) == 0)
        wait_until(lambda: stored(master) == 5, 20)
        assert store.close() == 0
        master.kill()
        master.start()
        client = joined(master, 0)
        wait_until(lambda: client.remove("key-1", True) == MISSING, 20)
        wait_until(lambda: recovery(master)["open_ms"] == 0, 120)
        assert client.remove("key-2", True) == MISSING
        store = node(master, folder, monkeypatch)
        for number in (0, 3, 4):
            wait_until(lambda number=number: store.get(f"key-{number}") == value_of(number), 20)
        assert [client.get_size(f"key-{number}") for number in (1, 2)] == [MISSING, MISSING]
        assert store.close() == 0 and client.close() == 0
