"""KV events of a cluster of real nodes: values that move between memory and disk, and a master that dies."""
import http.client
import threading

import cluster
from python_cluster import MooncakeDistributedStore, joined, pattern, wait_until
from store_process import StoreProcess
from test_kv_events import Consumer, truth
from test_router import prefix

MIB = 1 << 20


class Follower(Consumer):
    """It follows on a thread of its own, whatever happens to the master; it may rest."""

    def __init__(self, master):
        super().__init__(master)
        self.is_over, self.may_go = False, threading.Event()
        self.may_go.set()
        self.trouble = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while not self.is_over:
                self.may_go.wait()
                try:
                    self.step("&wait_ms=200&limit=7")
                except (OSError, http.client.HTTPException):
                    pass  # the master is dead
        except Exception as trouble:  # pylint: disable=broad-except
            self.trouble = trouble

    def end(self):
        """Its index, when it has ended."""
        self.is_over = True
        self.may_go.set()
        self.thread.join()
        assert self.trouble is None, self.trouble
        return self.catch_up()


def test_memory_and_disk(folder, monkeypatch):
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(512 * MIB))
    with cluster.Master("--enable_offload", "--enable_kv_events", "--default_kv_lease_ttl=100") as master:
        follower = Follower(master)
        store = MooncakeDistributedStore()
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", master.address, enable_ssd_offload=True, ssd_offload_path=str(folder)) == 0
        wait_until(lambda: master.metrics()["mooncake_disks"] == 1)
        names = [f"key-{number}" for number in range(40)]  # of 1 MiB: more than twice the memory
        for number, name in enumerate(names):
            wait_until(lambda name=name, number=number: store.put(name, pattern(MIB, number)) == 0)
            wait_until(lambda number=number: master.metrics()["file_cache_nums_"] == number + 1, 20)
        index = truth(master)
        assert {medium for media in index.values() for medium in media} == {"cpu", "disk"} and len(index) == 40
        assert index["default", "key-0"] == {"disk"}, "it has left the memory"
        found = prefix(master, names)
        assert found["longest_matched"] == found["disk"] == store.longest_prefix(names) == 40 and found["cpu"] == 0
        wait_until(lambda: store.get("key-0") == pattern(MIB, 0), 20)
        wait_until(lambda: truth(master)["default", "key-0"] == {"cpu", "disk"}, 20)
        assert prefix(master, names)["cpu"] > 0
        assert store.remove("key-20", True) == 0 and store.longest_prefix(names) == prefix(master, names)["longest_matched"] == 20
        assert follower.end() == truth(master)
        assert follower.snapshots == 1
        assert store.close() == 0
        # The memory is gone with its node; its disk may come back.
        wait_until(lambda: set(map(frozenset, truth(master).values())) == {frozenset(["disk"])}, 20)
        assert follower.catch_up() == truth(master) and len(follower.index) == 39
        assert prefix(master, names)["longest_matched"] == 0


def test_a_master_that_dies():
    """One follows all the time, one is away when the master dies, one comes at the end."""
    with cluster.Master("--enable_kv_events") as master, StoreProcess(master.address), StoreProcess(master.address):
        client = joined(master, 0)
        follower, sleeper = Follower(master), Follower(master)
        wait_until(lambda: client.put("warm up", bytes(MIB)) == 0)
        there = {"warm up"}
        for turn in range(3):
            names = [f"{turn}-{number}" for number in range(60)]
            for name in names:
                wait_until(lambda name=name: client.put(name, pattern(1000, turn)) == 0, 20)
            for name in names[::3]:
                assert client.remove(name, True) == 0
            there |= set(names) - set(names[::3])
            sleeper.may_go.clear()
            master.kill()
            master.start()
            wait_until(lambda: all(client.is_exist(name) == 1 for name in sorted(there)), 30)
            sleeper.may_go.set()
        for one in (follower, sleeper, Consumer(master)):
            index = one.end() if isinstance(one, Follower) else one.catch_up()
            assert index == truth(master) == {("default", name): {"cpu"} for name in there}
        assert follower.snapshots >= 2
        client.close()
